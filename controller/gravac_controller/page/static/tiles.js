// The figures of the last window; those of the paper's policy only where it runs.

import { $, Facts, setHidden } from "./dom.js";
import { bytes, count, digits, fine, known, large, NONE, ratio, seconds } from "./format.js";

const tiles = new Facts($("tiles"));

export function showTiles(job) {
  setHidden($("tiles"), job.latest === null);
  setHidden($("tiles-none"), job.latest !== null);
  tiles.set(tilesOf(job));
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
    ...linkTiles(view.report),
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

/** Waits and bytes a step on each level of links; of one level, nothing is shown. */
function linkTiles({ first_step: first, last_step: last, phases, payload_bytes: payload, inside }) {
  const steps = last - first + 1, within = inside?.seconds ?? 0, between = Math.max(0, phases.communicate - within);
  const tile = (key, waited, other, sent) => [key, `Network ${key} hosts`, inside ? seconds(waited / steps) : null,
    `waited a step${waited > other ? ", the longer of both" : ""}; ${bytes(sent / steps)} sent, all ranks`];
  return [tile("between", between, within, payload), tile("inside", within, between, inside?.sent_bytes ?? 0)];
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
