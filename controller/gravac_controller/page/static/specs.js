// What each chart shows: its series by column of rows.Columns, their look, and how a value is written.

import { cf, digits, fine, ratio, seconds, strength, tick, tickPercent, tickSeconds, times } from "./format.js";

const STACK = [
  ["Compute", "--phase-compute", null], ["Data wait", "--phase-wait", "dots"], ["Compress", "--phase-compress", "up"],
  ["Network", "--phase-network", null], ["Decompress", "--phase-decompress", "down"],
];

const line = (label, column, color, format, more = {}) => ({ label, column, color, format, width: 2, ...more });
const DASH = [7, 5], DOT = [2, 4];

/**
 * Part i of the stack: an opaque area up to its running sum, later parts painted over it from below; read as the
 * difference. (uPlot's bands would do the same, but not before the first point, where a step begins.)
 */
function part(i) {
  const [label, color, hatch] = STACK[i], column = `stack${i}`, below = `stack${i - 1}`;
  return {
    label, column, color, hatch, format: seconds, width: 1, area: true, stepped: true,
    value: (columns, at) => (i === 0 ? columns[column][at] : columns[column][at] - columns[below][at]),
  };
}

const fromZero = (u, low, high) => [Math.min(0, low ?? 0), (high ?? 1) > 0 ? (high ?? 1) * 1.08 : 1];

/** Log range from dense (1) up, at least one decade. */
const cfRange = (u, low, high) => [0.85, Math.max(10, high ?? 10) * 1.25];
const cfSplits = (u, axis, low, high) => (high > 60 ? [1, 10, 100, 1e3, 1e4, 1e5, 1e6] : [1, 2, 5, 10, 20, 50])
  .filter((value) => value <= high);

/** Two columns of an entry, and as text: a plan and how far it compresses. */
const both = (name, value) => (columns, at) => (columns[value][at] === null ? null : [columns[name][at], columns[value][at]]);
const planText = (words) => ([plan, value]) => (value === 1 ? plan : `${plan} · ${words(value)}`);

/** From somewhat below the least efficiency, at most 0.9, up to 1. */
const efficiencyRange = (u, low) => [Math.max(0, Math.min(0.9, (low ?? 1) - 0.03)), 1.01];

export const SPECS = [
  {
    id: "cf", title: "Compression", wide: true, marks: true, log: true, range: cfRange, splits: cfSplits, axis: strength,
    note: "Dense bytes per byte on the wire. ▼ marks a decision that changed something.",
    series: [
      line("Sent", "wire", "--blue", planText(times), { stepped: true, area: true, width: 2.5, value: both("plan", "wire") }),
      line("Set to", "cf", "--green", cf, { dash: DOT, stepped: true, width: 1.5, optional: "hasGain" }),
      line("Chosen", "chosen", "--orange", planText(cf), { dash: DASH, stepped: true, value: both("chosenPlan", "chosen"), optional: "hasGain" }),
    ],
  },
  {
    id: "efficiency", title: "Statistical efficiency", range: efficiencyRange, axis: tick,
    note: "η: steps that dense training needs per step of this one, estimated.",
    series: [
      line("η", "efficiency", "--blue", ratio, { width: 2.5 }),
      line("lowest", "efficiencyLow", "--muted", ratio, { dash: DOT, width: 1.5 }),
      line("highest", "efficiencyHigh", "--muted", ratio, { dash: DASH, width: 1.5 }),
    ],
  },
  {
    id: "gain", title: "Gain", optional: "hasGain", range: () => [0, 1.03], axis: tickPercent,
    note: "Energy that was sent / energy of gradient + residual: above 1 where a codec rounds at random. Below ε, the ranks send more.",
    series: [
      line("Sent", "gain", "--blue", digits),
      line("Candidate", "gainCandidate", "--orange", digits, { dash: DASH, optional: "hasCandidate" }),
      line("ε", "epsilon", "--red", digits, { dash: DOT, stepped: true, width: 1.5 }),
    ],
  },
  {
    id: "useful", title: "Samples per second", range: fromZero, axis: tick,
    note: "T_sys, of all ranks. Useful: T_sys × η.",
    series: [
      line("T_sys", "speed", "--green", digits, { dash: DASH }),
      line("Useful", "useful", "--blue", digits, { width: 2.5 }),
      line("T_comp = T_sys × gain", "compression", "--orange", digits, { dash: DOT, width: 1.5, optional: "hasGain" }),
    ],
  },
  {
    id: "backlog", title: "Backlog", range: fromZero, axis: tick,
    note: "τ: steps of progress in the error memory. Residual ratio: residual norm per gradient norm.",
    series: [
      line("Backlog τ", "backlog", "--purple", digits),
      line("Residual ratio", "residual", "--green", digits, { dash: DASH }),
    ],
  },
  {
    id: "steps", title: "Step time", range: fromZero, axis: tickSeconds, stacked: true,
    note: "Time of a step by phase, stacked. Network: the part that was not hidden.",
    series: [part(4), part(3), part(2), part(1), part(0),
      line("Inside hosts", "inside", "--ink", seconds, { dash: DASH, width: 1.5, optional: "hasInside" }),
      line("Dense step", "baseline", "--ink", seconds, { dash: DOT, width: 1.5 })],
  },
  {
    id: "loss", title: "Loss", optional: "hasLoss", axis: tick, range: null,
    note: "As the trainer logged it.",
    series: [line("Loss", "loss", "--green", fine)],
  },
];
