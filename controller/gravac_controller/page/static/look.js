// Measures and labels that charts share.

import { clock, duration, tickCount } from "./format.js";

export const FONT = '12px "Segoe UI", Roboto, Ubuntu, "Noto Sans", "Helvetica Neue", Arial, sans-serif';
export const LEFT_AXIS = 58;

/** Labels of steps, of Unix seconds that are `step` seconds apart, or of seconds since a start. */
export function axisLabels(axis, values, step) {
  if (axis === "step") return values.map((value) => (Number.isInteger(value) ? tickCount(value) : ""));
  if (axis === "since") return values.map((value) => (value >= 0 ? duration(value) : ""));
  const length = step < 60 ? 8 : 5;
  return values.map((value) => (step < 86400 ? clock(value, value).slice(0, length) : clock(value, 0).slice(0, -9)));
}
