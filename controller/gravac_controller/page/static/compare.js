// Several jobs of a report side by side: a table of figures, and each measure of all of them in one chart.

import { Charts } from "./charts.js";
import { $, el, setHidden } from "./dom.js";
import { bytes, count, digits, duration, fine, known, percent, ratio, seconds, strength, tick, tickPercent, tickSeconds, times } from "./format.js";
import { SPECS } from "./specs.js";

const COLORS = ["--blue", "--orange", "--green", "--purple", "--red", "--ink"], DASHES = [undefined, [7, 5], [2, 4]];
const FIGURES = [
  ["Loss, last logged", "loss", fine], ["Step, median of windows", "step_seconds_median", seconds],
  ["Efficiency η", "efficiency", ratio], ["Useful samples per second", "useful_samples_per_second", digits],
  ["T_comp", "compression_throughput", digits], ["Sent", "payload_bytes", bytes],
  ["On the wire", "wire_cf", times], ["Steps", "steps", count], ["Time in windows", "seconds", duration],
];
const LINES = [
  { id: "cf", title: "Compression", of: (row) => row.wire, format: strength, axis: strength, stepped: true },
  { id: "efficiency", title: "Statistical efficiency", of: (row) => row.efficiency, format: ratio, axis: tick },
  { id: "gain", title: "Gain", of: (row) => row.gain, format: digits, axis: tickPercent },
  { id: "steps", title: "Step time", of: (row) => row.seconds / (row.last - row.first + 1), format: seconds, axis: tickSeconds },
  { id: "loss", title: "Loss", of: (row) => row.loss, format: fine, axis: tick },
];

/** Whether the paper's policy ran, whose figures are gain and T_comp. */
const decidesByGain = ({ job }) => job.policy === "gravac";

export class Comparison {
  /** jobs: {label, job, rows, figures} each. */
  constructor(jobs) {
    this.jobs = jobs;
    this.by = { step: columns(jobs, (row) => row.last), since: columns(jobs, (row, first) => row.time - first.time + first.seconds) };
    const draws = (id) => this.by.step[`has ${id}`] && (id !== "gain" || jobs.some(decidesByGain));
    this.charts = new Charts($("compare-grid"), {
      onAt: () => {}, onView: () => this.view(), onPick: (window) => this.charts.pin.set(window),
    }, LINES.filter(({ id }) => draws(id)).map((line) => spec(line, jobs)));
    for (const axis of ["step", "since"]) $(`compare-${axis}`).addEventListener("click", () => this.turn(axis));
    $("compare-table").replaceChildren(...table(jobs));
    for (const id of ["compare", "compare-axis"]) setHidden($(id), false);
  }

  // What Charts asks of a state: an entry for every place at which any job has a window.
  get columns() {
    return this.by[this.charts.axis];
  }

  get rows() {
    return this.columns.rows;
  }

  log() {
    return [];
  }

  indexOf(window) {
    return window in this.rows ? window : -1;
  }

  draw() {
    this.charts.show(this);
  }

  turn(axis) {
    this.charts.range = null;  // it is in units of the other axis
    this.charts.pin.window = null;
    this.charts.setAxis(axis);
  }

  view() {
    for (const axis of ["step", "since"]) $(`compare-${axis}`).setAttribute("aria-pressed", String(this.charts.axis === axis));
  }
}

/** One axis for all jobs. Where a job has no window its entry is undefined: its line goes on; unknown is null. */
function columns(jobs, place) {
  const xs = [...new Set(jobs.flatMap(({ rows }) => rows.map((row) => place(row, rows[0]))))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, i) => [x, i]));
  const found = { step: xs, since: xs, length: xs.length, startStep: 0, startTime: 0, rows: xs.map((_, window) => ({ window })) };
  jobs.forEach(({ rows }, job) => {
    for (const { id, of } of LINES) {
      const values = found[`${id}${job}`] = new Array(xs.length).fill(undefined);
      for (const row of rows) values[at.get(place(row, rows[0]))] = of(row);
      found[`has ${id}`] ||= values.some(known);
    }
  });
  return found;
}

/** As SPECS have it, a series for each job; the looks of the axis are those of the chart below. */
function spec({ id, title, format, axis, stepped }, jobs) {
  const { log, range, splits } = SPECS.find((one) => one.id === id);
  const series = jobs.map(({ label }, i) => ({
    label, column: `${id}${i}`, color: COLORS[i % COLORS.length], dash: DASHES[Math.floor(i / COLORS.length) % DASHES.length],
    width: 2, stepped, format, value: (found, at) => lastKnown(found[`${id}${i}`], at),
  }));
  return { id: `compare-${id}`, title, note: "", log, range, splits, axis, series };
}

/** The value at a place, or the one before it: jobs do not end their windows at the same steps. */
function lastKnown(values, at) {
  for (let i = at; i >= 0; i -= 1) if (values[i] !== undefined) return values[i];
  return null;
}

function table(jobs) {
  const figures = FIGURES.filter(([, key]) => key !== "compression_throughput" || jobs.some(decidesByGain));
  const names = ["", "Policy", "Sent last", "Ranks", ...figures.map(([name]) => name)];
  const head = el("tr", {}, ...names.map((name, i) => el("th", { scope: "col", class: i > 2 ? "num" : null }, name || "Job")));
  const body = jobs.map(({ label, job, figures: its }) => el("tr", {}, el("th", { scope: "row" }, label),
    el("td", {}, job.policy), el("td", {}, job.plan), el("td", { class: "num" }, count(job.world_size)),
    ...figures.map(([, key, format]) => el("td", { class: "num" }, format(its[key]), than(its[key], jobs[0].figures[key], its === jobs[0].figures)))));
  return [el("thead", {}, head), el("tbody", {}, ...body)];
}

/** How far a figure is from the first job's. */
function than(value, first, same) {
  if (same || !known(value) || !known(first) || first === 0) return null;
  const share = value / first - 1;
  return el("span", { class: "than" }, `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`);
}
