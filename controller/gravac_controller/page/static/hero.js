// Which compression factor, why, and the accuracy risk: the big number, the sentence, the tiles.

import { now } from "./api.js";
import { $, el, Facts, setHidden, setText } from "./dom.js";
import { bytes, cf, clock, count, digits, fine, known, large, NONE, percent, plan, ratio, seconds, times } from "./format.js";
import { PHASE, PHASE_LONG, nameOf } from "./words.js";

const tiles = new Facts($("tiles"));

export function showHero(state) {
  const job = state.job, decision = job.decision, report = job.latest?.report ?? null;
  const over = job.state === "ended" || job.state === "interrupted";
  setText($("hero-title"), over ? "Last compression factor" : "Compression factor");
  setText($("cf"), cf(job.cf));
  $("cf").classList.toggle("word", job.cf === 1);
  setText($("cf-words"), job.cf === 1 ? "the whole gradient is sent" : `by ${job.codec}`);
  const wanted = plan(decision.codec ?? job.spec.compressor, decision.cf_candidate);
  setHidden($("cf-next"), report === null || decision.epoch === report.epoch || wanted === plan(job.codec, job.cf) || over);
  setText($("cf-next"), `next: ${wanted}`);
  $("phase").dataset.phase = job.phase;
  setText($("phase"), nameOf(PHASE, job.phase));
  setText($("epoch"), `${nameOf(PHASE_LONG, job.phase)} · epoch ${count(job.epoch)}`);
  setText($("reason"), decision.reason);
  showBeginning(state);
  const gate = gateSentence(decision, report);
  setHidden($("gate"), gate === "");
  setText($("gate"), gate);
  setHidden($("tiles"), report === null);
  tiles.set(tilesOf(state));
}

/** When the decision in force was made, and why its epoch began when that was another decision. */
function showBeginning(state) {
  const { decision } = state.job, began = state.beginning;
  const earlier = began !== null && began.window !== decision.window ? began : null;
  setText($("decided"), decision.window < 0 ? "Decided at the start." : `Decided after window ${count(decision.window)}.`);
  setHidden($("began"), earlier === null);
  if (earlier === null) return;
  const since = earlier.window < 0 ? "the start" : `window ${count(earlier.window)}`;
  setText($("began-since"), `In force since ${since}, ${clock(earlier.time, now())}:`);
  setText($("began-reason"), earlier.reason);
}

/** Said only when the ranks sent something else than the decision's candidate, under that same decision. */
function gateSentence(decision, report) {
  if (report === null || report.phase === "fallback" || report.epoch !== decision.epoch) return "";
  if (report.cf === decision.cf_candidate) return "";
  const why = report.cf === decision.cf_minimum ? "the minimum" : "uncompressed gradients";
  return `Chosen ${cf(decision.cf_candidate)}, sent ${cf(report.cf)}: at the last step, the gain of the chosen CF was below `
    + `ε = ${digits(decision.epsilon)}, so the ranks sent ${why}.`;
}

function tilesOf({ job }) {
  const view = job.latest;
  if (view === null) return [];
  const base = job.baseline_step_seconds ?? job.predicted_dense_step_seconds, step = view.step_seconds;
  const source = known(job.baseline_step_seconds) ? "" : " (predicted)";
  const faster = known(base) && step > 0 ? base / step : null;
  const against = faster === null ? "" : job.phase === "warmup" ? "measuring the baseline"
    : faster >= 1 ? `${times(faster)} as fast as dense${source}` : `${percent(step / base - 1)} slower than dense${source}`;
  const useful = known(view.useful_samples_per_second) ? `samples/s: T_sys ${digits(view.samples_per_second)} × η` : "needs η";
  return [
    ["useful", "Useful throughput", digits(view.useful_samples_per_second), useful],
    ["efficiency", "Efficiency η", ratio(view.efficiency), efficiencyNote(view), EFFICIENCY_HELP],
    ["gain", "Gain", digits(view.gain), `share of the gradient's energy that was sent; ε ${digits(job.decision.epsilon)}`],
    ["backlog", "Backlog τ", digits(view.backlog), "steps of progress that wait in the error memory"],
    ["step", "Step time", seconds(step), against],
    ["wire", "On the wire", view.wire_cf === 1 ? "1×" : times(view.wire_cf), `${bytes(perStep(view.report))} per step, all ranks`],
    boundTile(job),
    ["loss", "Loss", known(view.report.loss) ? fine(view.report.loss) : null, "as the trainer logged it"],
  ];
}

const EFFICIENCY_HELP = "Statistical efficiency: the steps that dense training needs divided by the steps that this training needs "
  + "to the same loss. Estimated from the codec, the compression factor, the optimizer and the backlog.";

function efficiencyNote({ efficiency, efficiency_low: low, efficiency_high: high }) {
  if (!known(efficiency)) return "this window does not show it";
  return low === high ? "dense steps are 1" : `${ratio(low)} to ${ratio(high)}; dense is 1`;
}

const perStep = (report) => report.payload_bytes / (report.last_step - report.first_step + 1);

/** The title of the tab. It names a number only while that number is current. */
export function showTitle(job, status) {
  const current = ["running", "ended", "replay"].includes(status.key);
  const text = job === null ? "gravac" : current ? `${cf(job.cf)} · ${job.job}` : `${status.word} · ${job.job}`;
  if (document.title !== text) document.title = text;
}

const HELP = "Up to B_S samples per step, each sample contributes about as much as it would alone. Beyond it, larger batches stop "
  + "paying off. While your global batch is far below B_S, add workers. Near or above it, make steps cheaper: stronger "
  + "compression, fewer bytes. A rough estimate, from how much the ranks' gradients differ in one window of uncompressed gradients.";

/** An entry of the tiles: key, label, value, note, explanation. */
function boundTile({ spec, latest, gradient_diversity: diversity, batch_bound_samples: bound }) {
  const batch = latest?.global_batch_samples ?? null;
  const [value, note] = known(bound)
    ? [`≈ ${rough(bound.value)}`, `samples (your global batch: ${count(batch)}), measured in window ${count(bound.window)}`]
    : [NONE, whyUnknown(spec, batch, diversity)];
  return ["bound", "Batch bound B_S", value, note, HELP];
}

/** Two digits: windows of the same job differ in the first. */
const rough = (value) => large(Number(value.toPrecision(2)));

function whyUnknown(spec, batch, diversity) {
  if (spec.world_size < 2) return "needs at least two ranks";
  if (!known(batch)) return "the trainer's batch size is unknown; pass it to agent.log(samples=…)";
  if (!known(diversity)) return "not measured: only windows of uncompressed gradients show it (warm-up, fallback)";
  return `too noisy to measure: probably far above your global batch (${count(batch)})`;
}

const WORD = { none: "no risk", low: "low", raised: "raised", high: "high", unknown: "unknown" };

export function showRisk({ risk }) {
  setHidden($("risk"), risk === null);
  if (risk === null) return;
  $("risk").dataset.level = risk.level;
  setText($("risk-word"), nameOf(WORD, risk.level));
  setText($("risk-rule"), risk.rule);
  const list = $("risk-because"), key = JSON.stringify(risk.because);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...risk.because.map((sentence) => el("li", {}, sentence)));
}
