// Ranks against windows as a heat map: which rank did its own work slower than the others, and when.

import { getJson, jobPath } from "./api.js";
import { $, el, setHidden, setText } from "./dom.js";
import { count } from "./format.js";
import { cssColor } from "./theme.js";

const AGAIN_MS = 5000;
const ALIKE = 110;  // per cent of the median rank's own time: below it no rank stands out, and a map would be one grey box
const SMALLEST_ROW = 3, LARGEST_ROW = 18, HEIGHT = 320;  // CSS pixels

export class Heat {
  /** onPick(window): the person clicked a cell. */
  constructor(onPick) {
    this.canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": "Own time of each rank by window." });
    $("heat").append(this.canvas);
    this.load = (job) => getJson(jobPath(job, "/ranks/history"));
    this.readAt = -Infinity;
    this.job = this.windows = this.data = null;
    Object.assign(this, { stale: false, seen: false, few: true, timer: 0, limit: Infinity });
    new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen) this.read();
    }, { rootMargin: "200px" }).observe($("heat-box"));
    new ResizeObserver(() => this.paint()).observe($("heat"));
    this.canvas.addEventListener("mousemove", (event) => this.describe(this.cellAt(event)));
    this.canvas.addEventListener("mouseleave", () => this.describe(null));
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell !== null) onPick(cell.column.last_window);
    });
  }

  /** The job as it is now, and the last window to show: a page that shows a trace at a window shows no later ones. */
  show({ job, spec, windows, latest }) {
    if (job !== this.job) this.data = null;
    const limit = latest?.report.window ?? -1;
    this.few = spec.world_size < 2 || windows === 0;
    if (job !== this.job || windows !== this.windows) this.stale = true;
    Object.assign(this, { job, windows, limit });
    this.paint();
    this.read();
  }

  /** Ask for the table once, and again when it is in sight and has changed, but not too often. */
  async read() {
    clearTimeout(this.timer);
    if (!this.stale || this.job === null || (this.data !== null && !this.seen)) return;
    const wait = this.data === null ? 0 : this.readAt + AGAIN_MS - performance.now();
    if (wait > 0) {
      this.timer = setTimeout(() => this.read(), wait);
      return;
    }
    const { job } = this;
    this.stale = false;
    this.readAt = performance.now();
    try {
      const data = await this.load(job);
      if (job !== this.job) return;
      this.data = data;
      this.paint();
    } catch {
      this.stale = true;  // asked again with the next window
    }
  }

  get columns() {
    return this.data.columns.filter((column) => column.first_window <= this.limit);
  }

  paint() {
    setHidden($("heat-box"), this.data === null || this.few);
    if ($("heat-box").hidden) return;
    const { columns } = this, rows = Math.max(1, ...columns.map(({ percent }) => percent.length));
    const height = Math.max(SMALLEST_ROW, Math.min(LARGEST_ROW, Math.floor(HEIGHT / rows))) * rows;
    this.rows = rows;
    this.alike = !columns.some(({ percent }) => percent.some((value) => value > ALIKE));
    setHidden($("heat"), this.alike);
    setHidden($("heat-key"), this.alike);
    if (!this.alike) paintHeat(this.canvas, columns, rows, $("heat").clientWidth, height);
    this.describe(null);
  }

  cellAt(event) {
    if (this.data === null) return null;
    const box = this.canvas.getBoundingClientRect(), { columns } = this;
    const column = columns[Math.floor(((event.clientX - box.left) / box.width) * columns.length)];
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    return column === undefined || row < 0 ? null : { column, row };
  }

  /** What a cell is; of none, the slowest in sight. */
  describe(cell) {
    const text = cell === null ? `${this.alike ? "All ranks take about the same time. " : ""}Slowest: ${this.worst()}` : this.cell(cell);
    setText($("heat-note"), text);
    this.canvas.setAttribute("aria-label", `Own time of each rank by window. ${text}`);
  }

  cell({ column, row }) {
    const { first_window: first, last_window: last, percent } = column, each = this.data.ranks_per_row;
    const ranks = each === 1 ? `Rank ${count(row)}` : `Ranks ${count(row * each)}–${count((row + 1) * each - 1)}`;
    const windows = first === last ? `window ${count(first)}` : `windows ${count(first)}–${count(last)}`;
    const value = percent[row] ?? null;
    return `${ranks}, ${windows}: ${value === null ? "not known" : `${count(value)} % of the median rank's own time`}.`;
  }

  worst() {
    let found = null, most = 0;
    for (const column of this.columns) {
      column.percent.forEach((value, row) => {
        if (value !== null && value > most) [most, found] = [value, { column, row }];
      });
    }
    return found === null ? "not known." : this.cell(found);
  }
}

const STEPS = 16;
const FULL = 200;  // per cent of the median rank's own time that has the strongest color

/** Strength of a cell, 0 to 1: small differences are spread, as most ranks are alike. */
const strength = (percent) => Math.min(1, Math.max(0, (percent - 100) / (FULL - 100))) ** 0.6;

/** Draw columns of {percent} into a canvas of that size in CSS pixels. Unknown cells stay empty. */
function paintHeat(canvas, columns, rows, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d"), palette = ramp(cssColor("--heat-low"), cssColor("--heat-high"));
  const gap = canvas.height / rows > 8 ? ratio : 0;
  columns.forEach(({ percent }, at) => {
    const left = Math.round((at * canvas.width) / columns.length), right = Math.round(((at + 1) * canvas.width) / columns.length);
    percent.forEach((value, row) => {
      if (value === null) return;
      const top = Math.round((row * canvas.height) / rows), bottom = Math.round(((row + 1) * canvas.height) / rows);
      context.fillStyle = palette[Math.round(strength(value) * STEPS)];
      context.fillRect(left, top, right - left, bottom - top - gap);
    });
  });
}

function ramp(low, high) {
  const [from, to] = [low, high].map((text) => text.match(/[\d.]+/g).slice(0, 3).map(Number));
  return Array.from({ length: STEPS + 1 }, (_, i) => {
    const parts = from.map((value, part) => Math.round(value + ((to[part] - value) * i) / STEPS));
    return `rgb(${parts.join(" ")})`;
  });
}
