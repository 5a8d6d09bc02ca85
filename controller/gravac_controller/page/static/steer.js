// Steering: pin a plan, go dense, pause, resume. Only where the controller allows it.
//
// The user types the token. It stays in the memory of this module: never in the address, a cookie or storage.

import { HttpError, order, orderState } from "./api.js";
import { $, setHidden, setText } from "./dom.js";
import { cf, count, known } from "./format.js";
import { PHASE, nameOf } from "./words.js";

const ACTOR = /^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$/;  // as gravac.protocol has it
let token = "";

export class Steer {
  constructor() {
    this.job = null;
    this.pending = null;  // what the open dialog asks to confirm: {body, tag}
    for (const action of ["pin", "dense", "pause", "resume"]) $(`steer-${action}`).addEventListener("click", () => this.ask(action));
    $("steer-token").addEventListener("change", (event) => this.readToken(event.target));
    $("steer-forget").addEventListener("click", () => this.forget());
    $("steer-yes").addEventListener("click", () => this.send());
    $("steer-no").addEventListener("click", () => $("steer-dialog").close());
  }

  /** The job as it is now, and its decision in force. */
  show(job, decision) {
    if (job.job !== this.job?.job) setText($("steer-result"), "");
    this.job = job;
    setHidden($("steer"), !job.control_enabled);
    setText($("steer-now"), inForce(job, decision));
    for (const action of ["pin", "dense", "pause"]) $(`steer-${action}`).disabled = job.state === "ended";
    $("steer-resume").disabled = job.state === "ended" || (job.override === null && job.override_waiting === null);
    this.showChoice(decision.candidates.filter((row) => row.cf > 1));
  }

  /** What can be pinned: a factor of the job's compressor, or one of the plans of a policy that chooses between codecs. */
  showChoice(rows) {
    const plans = rows.some((row) => row.codec !== this.job.spec.compressor), key = JSON.stringify([plans, rows.map((row) => row.plan)]);
    if ($("steer-ladder").dataset.key === key) return;
    $("steer-ladder").dataset.key = key;
    setHidden($("steer-cf-box"), plans);
    setHidden($("steer-plan-box"), !plans);
    $("steer-ladder").replaceChildren(...rows.map((row) => new Option("", String(row.cf))));
    const chosen = $("steer-plan").value;
    $("steer-plan").replaceChildren(...rows.map((row) => new Option(row.plan, JSON.stringify({ cf: row.cf, codec: row.codec }))));
    if (rows.length && [...$("steer-plan").options].some((option) => option.value === chosen)) $("steer-plan").value = chosen;
  }

  /** The chosen plan, as an order has it; and in words. */
  get wanted() {
    const list = $("steer-plan");
    if ($("steer-plan-box").hidden) return { order: { cf: Number($("steer-cf").value) }, words: cf(Number($("steer-cf").value)) };
    return { order: JSON.parse(list.value), words: list.selectedOptions[0].text };
  }

  /** Read the token that was typed and remove it from the document at once. */
  readToken(input) {
    token = input.value.trim();
    input.value = "";
    this.showToken();
  }

  forget() {
    token = "";
    this.showToken();
  }

  showToken() {
    setText($("steer-token-state"), token === "" ? "No token entered." : "A token is in this page's memory until the page is closed.");
    setHidden($("steer-forget"), token === "");
  }

  /** Ask for confirmation: what is about to be ordered, and what is in force. Nothing is sent yet. */
  async ask(action) {
    const actor = $("steer-actor").value.trim(), note = $("steer-note").value.trim(), { order: wanted, words } = this.wanted;
    this.readTypedToken();
    const wrong = token === "" ? ["Enter the control token first.", "steer-token"]
      : !ACTOR.test(actor) ? ["Enter your name: letters, digits and . _ @ + - (it is journaled with the order).", "steer-actor"]
        : action === "pin" && !(wanted.cf >= 1 && wanted.cf <= 1e9) ? ["The compression factor must be at least 1 (dense).", "steer-cf"] : null;
    if (wrong !== null) {
      setText($("steer-result"), wrong[0]);
      $(wrong[1]).focus();
      return;
    }
    try {
      const { tag } = await orderState(this.job.job);
      const body = { action, actor, note, ...(action === "pin" ? wanted : {}) };
      this.pending = { job: this.job.job, body, tag };
    } catch (error) {
      setText($("steer-result"), `The controller did not answer: ${error.message}`);
      return;
    }
    setText($("steer-result"), "");
    setText($("steer-question"), question(action, words, this.job));
    $("steer-dialog").showModal();
  }

  readTypedToken() {
    if ($("steer-token").value !== "") this.readToken($("steer-token"));
  }

  async send() {
    const { job, body, tag } = this.pending;
    $("steer-dialog").close();
    try {
      await order(job, body, tag, token);
      setText($("steer-result"), "Accepted. It takes effect on all ranks with the decision on the next window.");
    } catch (error) {
      setText($("steer-result"), error.status === 412
        ? "Rejected: the job has a newer decision. Check it, then repeat the order."
        : refused(error) ? `Rejected: ${error.message}`
          : `No answer from the controller (${error.message}). The order may have been accepted: check above which one is in force before you repeat it.`);
    }
  }
}

/** Whether the controller refused. Without an answer, or with a proxy's 502 or 504, it may have accepted. */
const refused = (error) => error instanceof HttpError && error.status !== 502 && error.status !== 504;

const WHAT = {
  pin: (words) => `Pin ${words}, whatever it costs,`, dense: () => "Send uncompressed gradients", pause: () => "Pause exploration",
  resume: () => "Return control to the policy",
};

function question(action, words, job) {
  return `${WHAT[action](words)} for “${job.job}”? Now: ${job.plan}, ${nameOf(PHASE, job.phase).toLowerCase()}, epoch ${count(job.epoch)}. `
    + "All ranks switch after the next window. The order is journaled with your name.";
}

function inForce({ override, override_waiting: waiting }, { plan, candidates }) {
  const wordsOf = (order) => candidates.find((row) => row.cf === order.cf && row.codec === order.codec)?.plan ?? cf(order.cf);
  const phrase = (order, words) => `${order.actor}: ${order.action === "pin" ? `pin ${words}` : order.action}${order.note ? ` (“${order.note}”)` : ""}`;
  const now = known(override) ? `In force: ${phrase(override, plan)}.` : "The policy decides.";
  return known(waiting) ? `${now} Waiting for the next window: ${phrase(waiting, wordsOf(waiting))}.` : now;
}
