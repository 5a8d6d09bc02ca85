// How many times as fast as dense training the last window was.

import { $, setText } from "./dom.js";
import { known, NONE, percent, seconds, times } from "./format.js";

/** A dense step in seconds, measured or predicted, and how many times as fast the last window was, without pauses; null: not known. */
export function speedOf({ latest, baseline_step_seconds: measured, predicted_dense_step_seconds: predicted }) {
  const dense = measured ?? predicted, step = latest?.usual_step_seconds ?? null;
  return { dense, step, measured: known(measured), faster: known(dense) && step > 0 ? dense / step : null };
}

export function showSpeed(job) {
  const { dense, step, measured, faster } = speedOf(job), warming = job.phase === "warmup";
  setText($("speed"), faster === null || warming ? NONE : times(faster));
  $("speed").classList.toggle("bad", faster !== null && !warming && faster < 0.995);
  const steps = step === null ? "" : `${seconds(step)} a step`;
  if (warming || faster === null) {
    setText($("speed-note"), [warming ? "measuring dense steps" : "the dense step is not known", steps].filter(Boolean).join("; "));
    return;
  }
  const plain = job.spec.hosts ? "dense in two levels" : "dense";
  const word = faster < 0.995 ? `slower than ${plain} by ${percent(1 / faster - 1)}` : `as fast as ${plain}`;
  setText($("speed-note"), `${word}: ${steps}, dense ${seconds(dense)}${measured ? "" : " (predicted)"}`);
}
