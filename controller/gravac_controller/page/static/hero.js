// The first row, to be read in five seconds: how fast the job is, what it sends and risks, and why.

import { now } from "./api.js";
import { $, el, setHidden, setText } from "./dom.js";
import { cf, clock, count, digits, known, NONE, planChange, times } from "./format.js";
import { showSpeed } from "./speed.js";
import { showTiles } from "./tiles.js";
import { OPERATOR_RULES, PHASE, PHASE_LONG, nameOf } from "./words.js";

export function showHero(state) {
  const { job } = state;
  showSpeed(job);
  showPlan(state);
  showChange(state);
  showTiles(job);
}

/** What the ranks sent in the last window, and what is about to follow. */
function showPlan(state) {
  const { job } = state, report = job.latest?.report ?? null, decision = state.inForce;
  setText($("plan-title"), report === null ? "To be sent" : "Sent, last window");
  setText($("plan"), sent(job));
  setText($("plan-note"), planNote(job));
  setHidden($("plan-how"), !compresses(job));
  setText($("plan-words"), job.plan.replaceAll(" %", "\u00a0%"));
  setHidden($("plan-next"), report === null || decision.epoch === report.epoch || decision.plan === job.plan || job.state !== "running");
  setText($("plan-next"), `Next: ${decision.plan}`);
  const order = job.override, coming = job.override_waiting;
  $("phase").dataset.phase = order === null && coming === null ? job.phase : "ordered";
  setText($("phase"), coming !== null ? `Ordered by ${coming.actor}` : order === null ? nameOf(PHASE, job.phase)
    : `${order.action === "pause" ? "Paused" : "Pinned"} by ${order.actor}`);
  const gate = gateSentence(decision, report);
  setHidden($("gate"), gate === "");
  setText($("gate"), gate);
}

/** How many times fewer bytes than dense. */
const sent = ({ latest, cf: factor }) => (factor === 1 ? "dense" : times(latest?.wire_cf));

const compresses = ({ phase, cf: factor }) => phase !== "fallback" && phase !== "warmup" && factor !== 1;

function planNote(job) {
  if (compresses(job)) return job.latest === null ? "not sent yet" : "fewer bytes on the wire";
  return PHASE_LONG[job.phase] ?? "the whole gradient";
}

/** Said only when the ranks sent something else than the decision's candidate under it. */
function gateSentence(decision, report) {
  if (report === null || report.phase === "fallback" || report.epoch !== decision.epoch) return "";
  if (report.cf === decision.cf) return "";
  const why = report.cf === decision.minimum ? "the minimum" : "uncompressed gradients";
  return `Chosen ${cf(decision.cf)}, sent ${cf(report.cf)}: at the last step, the gain of the chosen CF was below `
    + `ε = ${digits(decision.epsilon)}, so the ranks sent ${why}.`;
}

/** The decision that began what is in force: when, who, from what to what, and why. */
function showChange(state) {
  const { job } = state, view = state.beginning ?? state.inForce;
  const who = !OPERATOR_RULES.has(view.rule) ? `the policy ${job.policy}` : job.override?.actor ?? "an operator";
  const when = view.window < 0 ? "at the start" : `after window ${count(view.window)}`;
  setText($("changed"), `${known(view.time) ? `${clock(view.time, now())}, ` : ""}${when}, by ${who}: ${view.before === view.plan ? `keeps ${view.plan}` : planChange(view)}`);
  setText($("reason"), view.reason);
}

/** The title of the tab. It states what is sent only while that is current. */
export function showTitle(job, status) {
  const current = ["running", "ended", "replay"].includes(status.key);
  const text = job === null ? "gravac" : `${current ? sent(job) : status.word} · ${job.job}`;
  if (document.title !== text) document.title = text;
}

const WORD = { none: "no", low: "low", raised: "raised", high: "high", unknown: "unknown" };

export function showRisk({ risk }) {
  setHidden($("risk"), risk === null);
  $("risk-cell").dataset.level = risk?.level ?? "unknown";
  setText($("risk-word"), risk === null ? NONE : nameOf(WORD, risk.level));
  setText($("risk-first"), risk === null ? "No window yet." : risk.because[0]);
  if (risk === null) return;
  setText($("risk-rule"), risk.rule);
  const list = $("risk-because"), key = JSON.stringify(risk.because);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...risk.because.map((sentence) => el("li", {}, sentence)));
}
