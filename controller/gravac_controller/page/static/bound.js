// How large a batch still pays: the bound B_S as last measured, beside the batch in use.

import { NONE, count, known, large } from "./format.js";

const HELP = "Up to B_S samples a step, each sample teaches about as much as it would alone; beyond it, larger batches stop "
  + "paying. While your global batch is far below it, adding workers pays. Near or above it, cheaper steps pay: stronger "
  + "compression, fewer bytes. A rough estimate, from how much the ranks' gradients differ over one window that sends everything.";

/** An entry of the tiles: key, label, value, note, explanation. */
export function boundTile({ spec, latest, gradient_diversity: diversity, batch_bound_samples: bound }) {
  const batch = latest?.global_batch_samples ?? null;
  const [value, note] = known(bound)
    ? [`≈ ${rough(bound.value)}`, `samples (your global batch: ${count(batch)}), measured in window ${count(bound.window)}`]
    : [NONE, whyUnknown(spec, batch, diversity)];
  return ["bound", "Batch bound B_S", value, note, HELP];
}

/** Two digits: windows of the same job differ in the first. */
const rough = (value) => large(Number(value.toPrecision(2)));

function whyUnknown(spec, batch, diversity) {
  if (spec.world_size < 2) return "one rank has no other to compare with";
  if (!known(batch)) return "the trainer's batch size is not known; tell agent.log(samples=…)";
  if (!known(diversity)) return "not measured: only windows that send everything show it (warm-up, fallback)";
  return `noise drowned the gradient: probably far above your global batch (${count(batch)})`;
}
