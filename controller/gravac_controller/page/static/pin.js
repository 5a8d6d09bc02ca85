// The picked window, to which the cursor of all charts returns when the mouse leaves them.

export class Pin {
  constructor(charts) {
    this.charts = charts;
    this.window = null;  // its number, or null
    this.pointerOver = false;  // a mouse or a finger has moved over a chart since, and is still there
  }

  /** Its place in rows and columns, or -1: there is none, or it is not known (yet). */
  get at() {
    return this.window === null || this.charts.state === null ? -1 : this.charts.state.indexOf(this.window);
  }

  /** Keep the cursor on a window (null: let go), zooming out when it is not in view. */
  set(window) {
    const { charts } = this;
    this.window = window;
    this.pointerOver = false;
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
    queueMicrotask(() => this.charts.list.forEach((chart) => chart.moveCursor(at)));
  }

  /** Put the cursor back, unless a mouse has it. One that only rests where a chart has come to lie has not. */
  restore() {
    const { at } = this;
    if (at >= 0 && !this.pointerOver) this.place(at);
  }

  /** The mouse has moved over a chart. */
  moved() {
    this.pointerOver = true;
  }

  /** The mouse has left a chart, or the chart has moved away from under it. */
  left() {
    this.pointerOver = false;
    setTimeout(() => this.restore());
  }
}
