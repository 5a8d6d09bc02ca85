// One chart: its heading, its legend with live values, and the uPlot canvas.

import { el, setHidden, setText } from "./dom.js";
import { known, NONE } from "./format.js";
import { bind, gestures } from "./gestures.js";
import { drawMarks } from "./marks.js";
import { stackOrder, swatch, FONT, LEFT_AXIS, axisLabels, areaFill, softFill } from "./style.js";
import { cssColor } from "./theme.js";
import { nearest, thin } from "./thin.js";

const HEIGHT = 190, WIDE_HEIGHT = 220;

export class Chart {
  /** group: the Charts this belongs to (shared axis, zoom, cursor). */
  constructor(spec, group) {
    this.spec = spec;
    this.group = group;
    this.u = null;
    this.width = 0;
    this.plot = el("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart" });
    this.values = spec.series.map(() => el("span", { class: "value" }, NONE));
    this.items = spec.series.map((series, i) => el("li", {}, swatch(series), el("span", {}, series.label), this.values[i]));
    const legend = el("ul", { class: "legend" });
    legend.append(...(spec.stacked ? stackOrder(this.items) : this.items));
    this.box = el("figure", { class: `panel chart${spec.wide ? " wide" : ""}`, id: `chart-${spec.id}` },
      el("figcaption", {}, el("h3", {}, spec.title), el("span", { class: "muted small" }, spec.note)), legend, this.plot);
    this.plot.addEventListener("keydown", (event) => group.onKey(event));
    this.plot.addEventListener("pointermove", () => group.pin.moved());
    this.plot.addEventListener("mouseleave", () => group.pin.left());
  }

  get height() {
    return this.spec.wide ? WIDE_HEIGHT : HEIGHT;
  }

  /** What is in view, as many points as the chart has pixels for. */
  data(columns, span) {
    const series = this.spec.series.map(({ column }) => columns[column]);
    return thin(columns[this.group.axis], series, span, this.width || 300);
  }

  /** Show and hide what the columns call for. Before any chart draws: each new canvas upsets the layout of the page. */
  prepare(columns) {
    setHidden(this.box, this.spec.optional !== undefined && !columns[this.spec.optional]);
    this.spec.series.forEach((series, i) => {
      if (series.optional) setHidden(this.items[i], !columns[series.optional]);
    });
  }

  /** Read from the page what drawing needs: its width and colors. */
  measure() {
    this.width = this.plot.clientWidth;
    for (const { color } of this.spec.series) cssColor(color);
  }

  /** Draw the columns between two places. */
  draw(columns, span) {
    if (this.box.hidden) return;
    if (this.u === null) this.u = new window.uPlot(this.options(), this.data(columns, span), this.plot);
    else this.u.setData(this.data(columns, span));
    if (!(this.u.cursor.left >= 0)) this.showValues(null);
  }

  /** Forget the canvas: the axis or the theme has changed. */
  drop() {
    this.u?.destroy();
    this.u = null;
  }

  /** Fill the place there is. Returns whether that changed anything. */
  resize() {
    const width = this.plot.clientWidth;
    if (this.u === null || width === 0 || width === this.u.width) return false;
    this.width = width;
    this.u.setSize({ width, height: this.height });
    return true;
  }

  /** Put the cursor on entry `at` of the columns. */
  moveCursor(at) {
    const { u } = this;
    if (u === null) return;
    u.setCursor({ left: u.valToPos(this.group.x[at], "x"), top: u.bbox.height / 2 / devicePixelRatio }, true, false);
  }

  /** Legend values of entry `at`, or of the newest one (null). */
  showValues(at) {
    const { columns } = this.group;
    const here = at ?? columns.length - 1;
    this.spec.series.forEach((series, i) => {
      const value = series.value ? series.value(columns, here) : columns[series.column][here];
      setText(this.values[i], known(value) ? series.format(value) : NONE);
    });
    const spoken = this.spec.series.map((series, i) => `${series.label} ${this.values[i].textContent}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.spec.title}, ${at === null ? "newest window" : this.group.where(here)}: ${spoken}`);
  }

  options() {
    const { spec, group } = this;
    const grid = { stroke: () => cssColor("--grid"), width: 1 };
    const axis = { stroke: () => cssColor("--muted"), font: FONT, grid, ticks: { show: false }, gap: 6 };
    return {
      width: this.width || 300, height: this.height, padding: [10, 20, 0, 0], legend: { show: false },
      cursor: {
        y: false, points: { size: 7 }, drag: { x: true, y: false, setScale: false, dist: 6 },
        sync: { key: group.key, setSeries: false, scales: ["x", null], filters: { pub: (type) => type === "mousemove" } },
        bind: { ...bind, dblclick: () => () => group.zoom(null) },
      },
      scales: {
        x: { time: false, range: (u, low, high) => group.xRange(low, high) },
        y: { distr: spec.log ? 3 : 1, log: 10, range: spec.range ?? undefined },
      },
      axes: [
        { ...axis, size: 30, space: 80, values: (u, splits, i, space, step) => axisLabels(group.axis, splits, step) },
        { ...axis, size: LEFT_AXIS, space: 34, splits: spec.splits, filter: spec.log ? (u, all) => all : undefined,
          values: (u, splits) => splits.map((value) => (known(value) ? spec.axis(value) : "")) },
      ],
      series: [{}, ...spec.series.map(seriesOptions)],
      hooks: {
        setCursor: [(u) => {
          const at = u.cursor.left >= 0 ? nearest(group.x, u.posToVal(u.cursor.left, "x")) : null;
          this.showValues(at);
          group.onAt(at);
        }],
        setSelect: [(u) => group.selected(u)],
        draw: [(u) => drawMarks(u, group.marks.map((mark) => mark.x), spec.marks === true)],
        ready: [(u) => gestures(u, group)],
      },
    };
  }
}

function seriesOptions(series) {
  const { stepped } = window.uPlot.paths;
  return {
    label: series.label, stroke: () => cssColor(series.color), width: series.width, dash: series.dash, points: { show: showPoints },
    fill: series.hatch !== undefined ? areaFill(series.color, series.hatch) : series.area ? softFill(series.color) : undefined,
    paths: series.stepped ? stepped({ align: -1, extend: true }) : undefined,
  };
}

/** Dots only while there are few windows: a single one would be invisible otherwise. */
const showPoints = (u) => u.data[0].length < 3;
