// All charts together: one horizontal axis, one zoom, one cursor.

import { Chart } from "./chart.js";
import { count, duration } from "./format.js";
import { chartKey } from "./keys.js";
import { Pin } from "./pin.js";
import { SPECS } from "./specs.js";
import { inside, nearest } from "./thin.js";

export class Charts {
  /** grid: where they go. onAt(index or null): the cursor is on that window. onView(): axis or zoom changed. onPick(window or null). */
  constructor(grid, { onAt, onView, onPick }, specs = SPECS) {
    Object.assign(this, { onAt, onView, onPick });
    this.key = `gravac ${specs[0].id}`;  // charts of one group share a cursor
    this.axis = "step";
    this.range = null;  // what is zoomed to, in units of the axis; null: everything
    this.pin = new Pin(this);
    this.marks = [];  // {x, window} of the decisions that changed something
    this.state = null;
    this.list = specs.map((spec) => new Chart(spec, this));
    grid.append(...this.list.map((chart) => chart.box));
    this.grid = grid;
    new ResizeObserver(() => this.resize()).observe(grid);
  }

  get columns() {
    return this.state.columns;
  }

  get x() {
    return this.columns[this.axis];
  }

  get zoomed() {
    return this.range !== null;
  }

  show(state) {
    this.state = state;
    if (this.columns.length === 0) {
      this.drop();
      return;
    }
    this.marks = state.log(false).map(({ window }) => ({ window, at: state.indexOf(window) }))
      .filter(({ at }) => at >= 0).map(({ window, at }) => ({ window, x: this.x[at] }));
    for (const [name, here] of [["no-loss", this.columns.hasLoss], ["no-gain", this.columns.hasGain]]) this.grid.classList.toggle(name, !here);
    const span = inside(this.x, this.range);
    for (const chart of this.list) chart.prepare(this.columns);
    for (const chart of this.list) chart.measure();
    for (const chart of this.list) chart.draw(this.columns, span);
    this.pin.restore();
  }

  drop() {
    for (const chart of this.list) chart.drop();
  }

  resize() {
    if (this.state === null || !this.list.filter((chart) => chart.resize()).length) return;
    this.show(this.state);  // as many points as there are pixels now
  }

  /** Redraw everything: the theme has changed. */
  rebuild() {
    this.drop();
    if (this.state !== null) this.show(this.state);
  }

  setAxis(axis) {
    if (axis === this.axis) return;
    if (this.zoomed && this.state !== null) this.range = translated(this.x, this.columns[axis], this.range);
    this.axis = axis;
    this.rebuild();
    this.onView();
  }

  zoom(range) {
    this.range = range;
    if (this.state !== null) this.show(this.state);
    this.onView();
  }

  /** From the first step or moment to the last. */
  get all() {
    const { startStep, startTime } = this.columns, { x } = this;
    return [Math.min(x[0], this.axis === "time" ? startTime : startStep), x[x.length - 1]];
  }

  /** Zoom in (factor below 1) or out around a value of the axis. */
  zoomAround(factor, middle) {
    const range = rangeAround(this.all, this.range, factor, middle);
    if (range !== this.range) this.zoom(range);
  }

  /** Move along by a share of what is in view, to the right when positive. */
  pan(share) {
    if (this.zoomed) this.zoom(shifted(this.all, this.range, share));
  }

  /** The person dragged over a part of a chart. */
  selected(u) {
    const { left, width } = u.select;
    if (width < 1) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  /** Where entry `at` is, in words. */
  where(at) {
    return this.axis === "since" ? `${duration(this.x[at])} after the start` : `step ${count(this.columns.step[at])}`;
  }

  /** The person clicked: the decision marked within reach, or else the window. */
  pickNear(value, reach) {
    const distance = (mark) => Math.abs(mark.x - value);
    const near = this.marks.filter((mark) => distance(mark) <= reach).sort((a, b) => distance(a) - distance(b));
    this.onPick(near[0]?.window ?? this.state.rows[nearest(this.x, value)].window);
  }

  xRange(low, high) {
    if (this.zoomed) return this.range;
    const [start, end] = this.all;
    return start < end ? [start, end] : [start, start + 1];
  }

  onKey(event) {
    if (this.state !== null && this.columns.length > 0) chartKey(event, this);
  }
}

/** In (factor below 1) or out around a value. The same range when it cannot come any closer. */
function rangeAround(all, range, factor, middle) {
  const [from, to] = range ?? all;
  const found = [Math.max(all[0], middle - (middle - from) * factor), Math.min(all[1], middle + (to - middle) * factor)];
  if (found[0] <= all[0] && found[1] >= all[1]) return null;
  return found[1] - found[0] > 1e-6 * (all[1] - all[0]) ? found : range;
}

/** Along by a share of the range's width, to the right when positive, as far as there is something. */
function shifted(all, [from, to], share) {
  const width = to - from;
  const start = Math.max(all[0], Math.min(all[1] - width, from + share * width));
  return [start, start + width];
}

/** The same windows on another axis: values `a` of the old one, `b` of the new; null when fewer than two are in it. */
function translated(a, b, [from, to]) {
  const first = a.findIndex((value) => value >= from), last = a.findLastIndex((value) => value <= to);
  return first >= 0 && last > first ? [b[first], b[last]] : null;
}
