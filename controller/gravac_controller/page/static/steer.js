// Steering: pin a CF, send everything, pause exploring, give the decision back. Only where the controller allows it.
//
// The token is typed by the person and lives in this module's memory alone: never in the address, a cookie or storage.

import { HttpError, order, orderState } from "./api.js";
import { $, setHidden, setText } from "./dom.js";
import { cf, count, known } from "./format.js";
import { PHASE, say } from "./words.js";

const ACTOR = /^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$/;  // as gravac.protocol has it
let token = "";

export class Steer {
  constructor() {
    this.job = null;
    this.asked = null;  // what the open dialog asks to confirm: {body, tag}
    for (const action of ["pin", "dense", "pause", "resume"]) $(`steer-${action}`).addEventListener("click", () => this.ask(action));
    $("steer-token").addEventListener("change", (event) => this.keep(event.target));
    $("steer-forget").addEventListener("click", () => this.forget());
    $("steer-yes").addEventListener("click", () => this.give());
    $("steer-no").addEventListener("click", () => $("steer-dialog").close());
  }

  /** The job as it is now. */
  show(job) {
    if (job.job !== this.job?.job) setText($("steer-said"), "");
    this.job = job;
    setHidden($("steer"), !job.control_enabled);
    setHidden($("steered"), job.override === null && job.override_waiting === null);
    setText($("steered"), job.override_waiting !== null ? `ordered by ${job.override_waiting.actor}` : `steered by ${job.override?.actor}`);
    setText($("steer-now"), inForce(job));
    for (const action of ["pin", "dense", "pause"]) $(`steer-${action}`).disabled = job.state === "ended";
    $("steer-resume").disabled = job.state === "ended" || (job.override === null && job.override_waiting === null);
    const ladder = job.decision.candidates.map((row) => row.cf).filter((value) => value > 1), key = ladder.join();
    if ($("steer-ladder").dataset.key === key) return;
    $("steer-ladder").dataset.key = key;
    $("steer-ladder").replaceChildren(...ladder.map((value) => new Option("", String(value))));
  }

  /** The person typed the token: take it out of the document at once. */
  keep(input) {
    token = input.value.trim();
    input.value = "";
    this.held();
  }

  forget() {
    token = "";
    this.held();
  }

  held() {
    setText($("steer-held"), token === "" ? "No token is held." : "A token is held in this page's memory until it is closed.");
    setHidden($("steer-forget"), token === "");
  }

  /** Show what is about to be ordered, and what holds now; nothing is sent yet. */
  async ask(action) {
    const actor = $("steer-actor").value.trim(), note = $("steer-note").value.trim(), wanted = Number($("steer-cf").value);
    this.keepTyped();
    const wrong = token === "" ? ["Type the control token first.", "steer-token"]
      : !ACTOR.test(actor) ? ["Say who you are: letters, digits and . _ @ + - (it is journaled with the order).", "steer-actor"]
        : action === "pin" && !(wanted >= 1 && wanted <= 1e9) ? ["A compression factor is a number from 1 (dense) up.", "steer-cf"] : null;
    if (wrong !== null) {
      setText($("steer-said"), wrong[0]);
      $(wrong[1]).focus();
      return;
    }
    try {
      const { tag } = await orderState(this.job.job);
      const body = { action, actor, note, ...(action === "pin" ? { cf: wanted } : {}) };
      this.asked = { job: this.job.job, body, tag };
    } catch (error) {
      setText($("steer-said"), `Could not ask the controller: ${error.message}`);
      return;
    }
    setText($("steer-said"), "");
    setText($("steer-question"), question(action, wanted, this.job));
    $("steer-dialog").showModal();
  }

  keepTyped() {
    if ($("steer-token").value !== "") this.keep($("steer-token"));
  }

  async give() {
    const { job, body, tag } = this.asked;
    $("steer-dialog").close();
    try {
      await order(job, body, tag, token);
      setText($("steer-said"), "Taken. The decision on the next window obeys, on all ranks at once.");
    } catch (error) {
      setText($("steer-said"), error.status === 412
        ? "Not taken: the job has moved on since you were asked. Look again, then order anew."
        : refused(error) ? `Not taken: ${error.message}`
          : `No answer from the controller (${error.message}). The order may have been taken: check above who decides before you order again.`);
    }
  }
}

/** Whether the controller itself refused. With no answer, or a proxy's 502 or 504, it may have taken the order. */
const refused = (error) => error instanceof HttpError && error.status !== 502 && error.status !== 504;

const WHAT = {
  pin: (wanted) => `Pin ${cf(wanted)}, whatever its gain`, dense: () => "Send everything", pause: () => "Pause exploring",
  resume: () => "Give the decision back to the policy",
};

function question(action, wanted, job) {
  return `${WHAT[action](wanted)} for “${job.job}”? Now: ${cf(job.cf)}, ${say(PHASE, job.phase).toLowerCase()}, epoch ${count(job.epoch)}. `
    + "All ranks follow after the next window; the order is journaled under your name.";
}

function inForce({ override, override_waiting: waiting }) {
  const told = ({ action, cf: pinned, actor, note }) =>
    `${actor}: ${action === "pin" ? `pin ${cf(pinned)}` : action}${note ? ` (“${note}”)` : ""}`;
  const now = known(override) ? `In force: ${told(override)}.` : "The policy decides.";
  return known(waiting) ? `${now} Waiting for the next window: ${told(waiting)}.` : now;
}
