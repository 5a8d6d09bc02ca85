// The window that the cursor returns to, on all charts, whenever the mouse leaves them.

export class Pin {
  constructor(charts) {
    this.charts = charts;
    this.window = null;  // its number, or null
  }

  /** Its place in rows and columns, or -1: there is none, or it is not known (yet). */
  get at() {
    return this.window === null || this.charts.state === null ? -1 : this.charts.state.indexOf(this.window);
  }

  /** Keep the cursor on a window (null: let go), zooming out when it is not in view. */
  set(window) {
    const { charts } = this;
    this.window = window;
    if (charts.state === null) return;
    const { at } = this;
    if (at < 0) {
      for (const { u } of charts.list) u?.setCursor({ left: -10, top: -10 }, true, false);
      charts.onAt(null);
      return;
    }
    const { x, range } = charts;
    if (range !== null && (x[at] < range[0] || x[at] > range[1])) charts.zoom(null);
    this.place(at);
  }

  /** Put the cursor on entry `at`, once uPlot has taken in new data and scales (it does so in a microtask). */
  place(at) {
    queueMicrotask(() => this.charts.list.forEach((chart) => chart.point(at)));
  }

  /** Put the cursor back, unless a mouse has it. */
  restore() {
    const { at } = this;
    if (at >= 0 && !this.charts.list.some(({ plot }) => plot.matches(":hover"))) this.place(at);
  }

  /** The mouse has left a chart. */
  left() {
    setTimeout(() => this.restore());
  }
}
