// The first row, to be read in five seconds: how the job is, how fast, what it risks, what it sends, why, and what to do.

import { now } from "./api.js";
import { $, el, Facts, setHidden, setText } from "./dom.js";
import { bytes, cf, clock, count, digits, duration, fine, known, large, NONE, percent, planChange, ratio, seconds, times } from "./format.js";
import { OPERATOR_RULES, PHASE, PHASE_LONG, nameOf } from "./words.js";

const tiles = new Facts($("tiles"));
const over = (job) => job.state === "ended" || job.state === "interrupted";

export function showHero(state) {
  const { job } = state;
  showSpeed(job);
  showPlan(state);
  showChange(state);
  setHidden($("tiles"), job.latest === null);
  setHidden($("tiles-none"), job.latest !== null);
  tiles.set(tilesOf(job));
}

/** A dense step in seconds, measured or predicted, and how many times as fast the last window was; null: not known. */
function speedOf({ latest, baseline_step_seconds: measured, predicted_dense_step_seconds: predicted }) {
  const dense = measured ?? predicted, step = latest?.step_seconds ?? null;
  return { dense, step, measured: known(measured), faster: known(dense) && step > 0 ? dense / step : null };
}

function showSpeed(job) {
  const { dense, step, measured, faster } = speedOf(job), warming = job.phase === "warmup";
  setText($("speed-title"), over(job) ? "Speed, last window" : "Speed now");
  setText($("speed"), faster === null || warming ? NONE : times(faster));
  $("speed").classList.toggle("bad", faster !== null && !warming && faster < 0.995);
  const steps = step === null ? "" : `${seconds(step)} a step`;
  if (warming || faster === null) {
    setText($("speed-note"), [warming ? "measuring dense steps" : "the dense step is not known", steps].filter(Boolean).join("; "));
    return;
  }
  const word = faster < 0.995 ? `slower than dense by ${percent(1 / faster - 1)}` : "as fast as dense";
  setText($("speed-note"), `${word}: ${steps}, dense ${seconds(dense)}${measured ? "" : " (predicted)"}`);
}

/** What the ranks sent in the last window, by the bytes on the wire; and what is about to follow. */
function showPlan(state) {
  const { job } = state, report = job.latest?.report ?? null, decision = state.inForce;
  setText($("plan-title"), over(job) ? "Sent last" : report === null ? "To be sent" : "Sent now");
  setText($("plan"), job.plan.replaceAll(" %", "\u00a0%"));
  setText($("plan-note"), fewer(job));
  setHidden($("plan-next"), report === null || decision.epoch === report.epoch || decision.plan === job.plan || over(job));
  setText($("plan-next"), `Next: ${decision.plan}`);
  const order = job.override, coming = job.override_waiting;
  $("phase").dataset.phase = order === null && coming === null ? job.phase : "ordered";
  setText($("phase"), coming !== null ? `Ordered by ${coming.actor}` : order === null ? nameOf(PHASE, job.phase)
    : `${order.action === "pause" ? "Paused" : "Pinned"} by ${order.actor}`);
  const gate = gateSentence(decision, report);
  setHidden($("gate"), gate === "");
  setText($("gate"), gate);
}

function fewer({ latest, phase, cf: sent }) {
  if (phase === "fallback" || phase === "warmup") return PHASE_LONG[phase];
  if (sent === 1) return "the whole gradient";
  return known(latest?.wire_cf) ? `${times(latest.wire_cf)} fewer bytes on the wire` : "not sent yet";
}

/** Said only when the ranks sent something else than the decision's candidate, under that same decision. */
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

/** State and advice: what changes with the clock, too. `status`: as `status.js` says it. */
export function showState(job, status) {
  setText($("state-word"), job === null || status.key !== "replay" ? status.word : job.state === "running" ? "running then" : job.state);
  if (job === null) return;
  const report = job.latest?.report ?? null, age = now() - (job.last_report_time ?? job.started_time);
  const step = report === null ? "no window yet" : `step ${count(report.last_step)}, ${ranksOf(job, report)}`;
  setText($("state-note"), status.key === "replay" || over(job) ? `${step}; last report ${clock(job.last_report_time, now())}` : `${step}; last report ${duration(age)} ago`);
  const [text, command, note] = adviceOf(job, status);
  setHidden($("advice-box"), text === "");
  setText($("advice"), text);
  setHidden($("advice-command"), command === "");
  setText($("advice-command"), command);
  setText($("advice-note"), note);
}

const STEERING_OFF = "Orders are off here. GRAVAC_STEERING=owner in the trainer's environment, or gravac serve --owner-may-steer, allows them.";

function ranksOf({ world_size: all }, { ranks }) {
  return ranks.length === all ? `${count(all)} ${all === 1 ? "rank" : "ranks"}` : `${count(ranks.length)} of ${count(all)} ranks report`;
}

/** What a person can do about the state of the job: [sentence, command, note]. */
function adviceOf(job, { key }) {
  if (key === "replay") return ["", "", ""];
  if (key === "lost") return ["Training does not need the controller. Look whether its process still runs, and at controller.log in the data folder.", "", ""];
  if (key === "ended") return ["Nothing: the training is over. Read the figures below, or download the trace.", "", ""];
  if (key === "stale") return ["Look at the trainer: the process and the log of rank 0. It hangs, was killed, or does not reach this controller.", "", ""];
  const order = (sentence, command) => [sentence, job.control_enabled ? `${command} ${job.job}` : "", job.control_enabled ? "" : STEERING_OFF];
  if (job.override !== null) return order("The policy does not decide while this order is in force. To give control back:", "gravac resume");
  if (job.phase === "fallback") return ["Nothing: the ranks go on by themselves once the controller has answered again.", "", ""];
  if (job.latest?.report.nonfinite_steps > 0) return ["Look at the loss and the learning rate: a gradient was not finite. Those steps were left out.", "", ""];
  const level = job.risk?.level;
  if (level === "raised" || level === "high") return order("If the loss matters more than time, send everything until you know more:", "gravac dense");
  const { faster } = speedOf(job);
  if (faster !== null && faster < 0.95 && job.phase === "hold") return order("It is slower than dense training was. To send everything:", "gravac dense");
  return ["Nothing needs to be done.", "", ""];
}

function tilesOf(job) {
  const view = job.latest;
  if (view === null) return [];
  const useful = known(view.useful_samples_per_second) ? `samples/s: T_sys ${digits(view.samples_per_second)} × η` : "needs η";
  const paper = job.policy === "gravac";
  return [
    ["useful", "Useful throughput", digits(view.useful_samples_per_second), useful],
    ["efficiency", "Efficiency η", ratio(view.efficiency), efficiencyNote(view), EFFICIENCY_HELP],
    ["gain", "Gain", paper ? digits(view.gain) : null, `energy sent / energy of gradient and residual; ε ${digits(job.decision.epsilon)}`],
    ["backlog", "Backlog τ", paper ? digits(view.backlog) : null, "steps of progress that wait in the error memory"],
    ["wire", "Sent", bytes(perStep(view.report)), `a step, all ranks; dense ${bytes(perStep(view.report, "dense_bytes"))}`],
    boundTile(job, paper),
    ["loss", "Loss", known(view.report.loss) ? fine(view.report.loss) : null, "as the trainer logged it"],
  ];
}

const EFFICIENCY_HELP = "Statistical efficiency: the steps that dense training needs divided by the steps that this training needs "
  + "to the same loss. Estimated from the codec, the compression factor, the optimizer and the backlog.";

function efficiencyNote({ efficiency, efficiency_low: low, efficiency_high: high }) {
  if (!known(efficiency)) return "this window does not show it";
  return low === high ? "dense steps are 1" : `${ratio(low)} to ${ratio(high)}; dense is 1`;
}

const perStep = (report, what = "payload_bytes") => report[what] / (report.last_step - report.first_step + 1);

/** The title of the tab. It names a plan only while that is current. */
export function showTitle(job, status) {
  const current = ["running", "ended", "replay"].includes(status.key);
  const text = job === null ? "gravac" : `${current ? job.plan : status.word} · ${job.job}`;
  if (document.title !== text) document.title = text;
}

const HELP = "Up to B_S samples per step, each sample contributes about as much as it would alone. Beyond it, larger batches stop "
  + "paying off. While your global batch is far below B_S, add workers. Near or above it, make steps cheaper: stronger "
  + "compression, fewer bytes. A rough estimate, from how much the ranks' gradients differ in one window of uncompressed gradients.";

/** An entry of the tiles: key, label, value, note, explanation. */
function boundTile({ spec, latest, gradient_diversity: diversity, batch_bound_samples: bound }, shown) {
  const batch = latest?.global_batch_samples ?? null;
  const [value, note] = known(bound)
    ? [`≈ ${rough(bound.value)}`, `samples (your global batch: ${count(batch)}), measured in window ${count(bound.window)}`]
    : [NONE, whyUnknown(spec, batch, diversity)];
  return ["bound", "Batch bound B_S", shown ? value : null, note, HELP];
}

/** Two digits: windows of the same job differ in the first. */
const rough = (value) => large(Number(value.toPrecision(2)));

function whyUnknown(spec, batch, diversity) {
  if (spec.world_size < 2) return "needs at least two ranks";
  if (!known(batch)) return "the trainer's batch size is unknown; pass it to agent.log(samples=…)";
  if (!known(diversity)) return "not measured: only windows of uncompressed gradients show it (warm-up, fallback)";
  return `too noisy to measure: probably far above your global batch (${count(batch)})`;
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
