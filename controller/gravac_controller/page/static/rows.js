// One window as the charts need it, and all windows as columns that uPlot can draw without copying.

export const PHASES = ["compute", "data_wait", "compress", "communicate", "decompress"];  // bottom of the stack first

/** [name in files, field of a row] of what can be taken away, in order; the phases follow, as `…_seconds` a step. */
export const COLUMNS = [
  ["window", "window"], ["first_step", "first"], ["last_step", "last"], ["time", "time"], ["seconds", "seconds"],
  ["epoch", "epoch"], ["phase", "phase"], ["codec", "codec"], ["cf", "cf"], ["plan", "plan"], ["gain", "gain"], ["gain_candidate", "gainCandidate"],
  ["backlog", "backlog"], ["residual_ratio", "residual"], ["wire_cf", "wire"], ["samples_per_second", "speed"],
  ["efficiency", "efficiency"], ["efficiency_low", "efficiencyLow"], ["efficiency_high", "efficiencyHigh"],
  ["useful_samples_per_second", "useful"], ["compression_throughput", "compression"], ["loss", "loss"], ["nonfinite_steps", "nonfinite"], ["failed_steps", "failed"],
  ["inside_bytes", "insideBytes"], ["inside_seconds", "inside"],
];

/** What the page remembers of a WindowView (the rest of it is forgotten). */
export function rowOf(view) {
  const report = view.report, steps = report.last_step - report.first_step + 1;
  const compressing = report.phase === "fallback" || report.gains.length > 0;  // a dense decision measures no gain
  const dense = compressing ? undefined : report.levels.find((level) => level.cf === 1 && level.epoch === report.epoch);
  return {
    window: report.window, time: view.time, first: report.first_step, last: report.last_step,
    seconds: report.seconds, epoch: report.epoch, phase: report.phase, cf: report.cf,
    codec: report.cf === 1 ? null : view.codec, plan: view.plan, efficiency: view.efficiency, efficiencyLow: view.efficiency_low,
    efficiencyHigh: view.efficiency_high, compression: view.compression_throughput,
    gain: view.gain, speed: view.samples_per_second, useful: view.useful_samples_per_second, curve: report.curve ?? null,
    gainCandidate: report.phase === "explore" ? view.gain_candidate : null,
    backlog: view.backlog, residual: view.residual_ratio, wire: view.wire_cf, loss: report.loss,
    phases: PHASES.map((phase) => report.phases[phase] / steps),
    nonfinite: report.nonfinite_steps, failed: report.failed_steps,
    insideBytes: report.inside ? report.inside.sent_bytes / steps : null, inside: report.inside ? report.inside.seconds / steps : null,
    denseStep: dense?.step_seconds_median ?? null, denseExposed: dense?.exposed_seconds_median ?? null,
  };
}

/** The rows of a trace: lists by the names above (plans by place), and what only some windows have, [place, …] each. */
export function rowsOf({ columns, plans, curves, dense }) {
  const rows = columns.window.map((window, at) => ({
    ...Object.fromEntries(COLUMNS.map(([name, field]) => [field, columns[name]?.[at] ?? null])),
    plan: plans[columns.plan[at]], phases: PHASES.map((phase) => columns[`${phase}_seconds`][at]), curve: null, denseStep: null, denseExposed: null,
  }));
  for (const [at, steps, own, gains] of curves) rows[at].curve = { steps, own, gains };
  for (const [at, step, exposed] of dense) [rows[at].denseStep, rows[at].denseExposed] = [step, exposed];
  return rows;
}

/** Decisions of a trace as the controller's REST answers give them. */
export function viewsOf({ decisions, candidates }) {
  const known = candidates.map(([cf, gain, speed, useful, window, verdict, codec, efficiency, predicted, words]) => (
    { cf, gain, samples_per_second: speed, useful_samples_per_second: useful, window, verdict, codec, efficiency,
      predicted_samples_per_second: predicted, words }));
  return decisions.map(([time, changed, before, plan, window, epoch, phase, codec, minimum, candidate, epsilon, rule, reason, seen]) => ({
    time, changed, plan_before: before, plan, candidate_plans: seen.map((at) => known[at].words),
    decision: { window, epoch, phase, codec, cf_minimum: minimum, cf_candidate: candidate, epsilon, rule, reason, candidates: seen.map((at) => known[at]) },
  }));
}

const NAMES = ["step", "time", "plan", "wire", "cf", "chosenPlan", "chosen", "efficiency", "efficiencyLow", "efficiencyHigh",
  "speed", "useful", "compression", "gain", "gainCandidate", "epsilon", "backlog", "residual", "loss", "inside",
  "baseline", "stack0", "stack1", "stack2", "stack3", "stack4"];

/** Columns that are fields of a row. */
const ROW_NAMES = ["plan", "wire", "efficiency", "efficiencyLow", "efficiencyHigh", "speed", "useful", "backlog", "residual", "loss", "inside"];
/** Columns that only the paper's policy fills. */
const PAPER_NAMES = ["cf", "gain", "gainCandidate", "compression"];

/** Columns of equal length, one entry a window. Steps and times never go back, as uPlot needs. */
export class Columns {
  constructor() {
    this.clear();
  }

  clear() {
    for (const name of NAMES) this[name] = [];
    this.startStep = this.startTime = 0;
    this.hasLoss = this.hasCandidate = this.hasGain = this.hasInside = false;
  }

  get length() {
    return this.step.length;
  }

  /**
   * Append a row; `decision` is the one it ran under (or null), `baseline` the dense step in seconds (or null),
   * `paper`: the paper's policy runs, which decides by gain.
   */
  push(row, decision, baseline, paper) {
    const last = this.length - 1;
    if (last < 0) {
      this.startStep = row.first;
      this.startTime = row.time - row.seconds;
    }
    // A trainer that resumes from an older checkpoint counts the same steps twice; the axis waits for it.
    this.step.push(last < 0 ? row.last : Math.max(row.last, this.step[last] + 1e-3));
    this.time.push(last < 0 ? row.time : Math.max(row.time, this.time[last] + 1e-3));
    for (const name of ROW_NAMES) this[name].push(row[name]);
    for (const name of PAPER_NAMES) this[name].push(paper ? row[name] : null);
    this.chosenPlan.push(decision?.plan ?? null);
    this.chosen.push(paper ? decision?.cf ?? null : null);
    this.epsilon.push(paper ? decision?.epsilon ?? null : null);
    this.baseline.push(baseline);
    let sum = 0;
    for (let i = 0; i < 5; i += 1) this[`stack${i}`].push(sum += row.phases[i]);
    this.hasLoss ||= row.loss !== null;
    this.hasInside ||= row.inside !== null;
    this.hasCandidate ||= paper && row.gainCandidate !== null;
    this.hasGain ||= paper;
  }
}
