// All charts together: one horizontal axis, one zoom, one cursor.

import { Chart } from "./chart.js";
import { clock, tickCount } from "./format.js";
import { SPECS } from "./specs.js";

export class Charts {
  /** onAt(index or null): the cursor is on that window. onView(): axis or zoom changed. */
  constructor(grid, { onAt, onView }) {
    this.onAt = onAt;
    this.onView = onView;
    this.axis = "step";
    this.range = null;  // what is zoomed to, in units of the axis; null: everything
    this.pinned = null;  // a window number the cursor returns to
    this.marks = [];
    this.state = null;
    this.list = SPECS.map((spec) => new Chart(spec, this));
    grid.append(...this.list.map((chart) => chart.box));
    this.grid = grid;
    new ResizeObserver(() => this.list.forEach((chart) => chart.resize())).observe(grid);
  }

  get columns() {
    return this.state.columns;
  }

  show(state) {
    this.state = state;
    if (this.columns.length === 0) {
      this.drop();
      return;
    }
    const x = this.columns[this.axis];
    this.marks = state.log(false).map((view) => state.indexOf(view.window)).filter((at) => at >= 0).map((at) => x[at]);
    this.grid.classList.toggle("no-loss", !this.columns.hasLoss);
    for (const chart of this.list) chart.draw(this.columns);
    this.restore();
  }

  drop() {
    for (const chart of this.list) chart.drop();
  }

  /** Draw all anew: the theme has changed. */
  rebuild() {
    this.drop();
    if (this.state !== null) this.show(this.state);
  }

  setAxis(axis) {
    if (axis === this.axis) return;
    const [from, to] = this.range ?? [null, null], old = this.axis;
    if (from !== null && this.state !== null) this.range = this.translate(from, to, old, axis);
    this.axis = axis;
    this.rebuild();
    this.onView();
  }

  /** The same windows in units of the other axis. */
  translate(from, to, old, axis) {
    const a = this.columns[old], b = this.columns[axis];
    const inside = a.map((value, at) => at).filter((at) => a[at] >= from && a[at] <= to);
    return inside.length > 1 ? [b[inside[0]], b[inside[inside.length - 1]]] : null;
  }

  zoom(range) {
    this.range = range;
    if (this.state !== null) this.show(this.state);
    this.onView();
  }

  /** The person dragged over a part of a chart. */
  selected(u) {
    const { left, width } = u.select;
    if (width < 1) return;
    const range = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom(range);
  }

  xRange(low, high) {
    if (this.range !== null) return this.range;
    const { startStep, startTime } = this.columns;
    const start = Math.min(low, this.axis === "step" ? startStep : startTime);
    return start < high ? [start, high] : [start, start + 1];
  }

  xLabels(values, step) {
    if (this.axis === "step") return values.map((value) => (Number.isInteger(value) ? tickCount(value) : ""));
    const length = step < 60 ? 8 : 5;
    return values.map((value) => (step < 86400 ? clock(value, value).slice(0, length) : clock(value, 0).slice(0, -9)));
  }

  /** Keep the cursor on a window (null: let go), zooming out when it is not in view. */
  pin(window) {
    this.pinned = window;
    const at = window === null ? -1 : this.state.indexOf(window);
    if (at < 0) {
      this.pinned = null;
      for (const { u } of this.list) u?.setCursor({ left: -10, top: -10 }, true, false);
      this.onAt(null);
      return;
    }
    const x = this.columns[this.axis][at];
    if (this.range !== null && (x < this.range[0] || x > this.range[1])) this.zoom(null);
    this.place(at);
  }

  /** Put the cursor on entry `at`, once uPlot has taken in new data and scales (it does so in a microtask). */
  place(at) {
    queueMicrotask(() => this.list.forEach((chart) => chart.point(at)));
  }

  /** Put the cursor back on the pinned window, unless a mouse has it. */
  restore() {
    const at = this.pinned === null ? -1 : this.state.indexOf(this.pinned);
    if (at < 0 || this.list.some(({ plot }) => plot.matches(":hover"))) return;
    this.place(at);
  }

  /** The mouse has left a chart. */
  left() {
    setTimeout(() => this.state !== null && this.restore());
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.state === null) return;
    const last = this.columns.length - 1;
    const here = this.pinned === null ? last + 1 : this.state.indexOf(this.pinned);
    const go = (at) => this.pin(this.state.rows[Math.max(0, Math.min(last, at))].window);
    const actions = {
      ArrowLeft: () => go(here - 1), ArrowRight: () => go(here + 1), PageUp: () => go(here - 10), PageDown: () => go(here + 10),
      Home: () => go(0), End: () => go(last), "+": () => this.closer(0.5, here), "=": () => this.closer(0.5, here),
      "-": () => this.closer(2, here), Escape: () => { this.pin(null); this.zoom(null); },
    };
    if (!(event.key in actions) || last < 0) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Zoom in (factor below 1) or out around the cursor. */
  closer(factor, at) {
    const x = this.columns[this.axis], last = x.length - 1;
    const all = [Math.min(x[0], this.axis === "step" ? this.columns.startStep : this.columns.startTime), x[last]];
    const [from, to] = this.range ?? all;
    const middle = x[Math.max(0, Math.min(last, at))], half = ((to - from) * factor) / 2;
    const range = [Math.max(all[0], middle - half), Math.min(all[1], middle + half)];
    this.zoom(range[0] <= all[0] && range[1] >= all[1] ? null : range);
  }
}
