// Gain against compression factor: the curve a survey measured, what was tried, and what was chosen.

import { $, el, setHidden, setText } from "./dom.js";
import { NONE, cf, count, digits, known, tickPercent } from "./format.js";
import { dots, level } from "./marks.js";
import { FONT, LEFT_AXIS, softFill } from "./style.js";
import { cssColor } from "./theme.js";

const HEIGHT = 250;
const CFS = Array.from({ length: 61 }, (_, i) => 10 ** (i / 20));  // as gravac.protocol.GainCurve has it

/** The largest CF that keeps at least `epsilon`, between the points of the curve; null when none or all do. */
export function crossing(gains, epsilon) {
  for (let i = 1; i < gains.length; i += 1) {
    const [high, low] = [gains[i - 1], gains[i]];
    if (known(high) && known(low) && high >= epsilon && low < epsilon) {
      return CFS[i - 1] * (CFS[i] / CFS[i - 1]) ** ((high - epsilon) / (high - low));
    }
  }
  return null;
}

export class Curve {
  constructor(box) {
    this.value = el("span", { class: "value" }, NONE);
    this.plot = el("div", { class: "plot", id: "curve-plot", role: "img" });
    this.note = el("p", { class: "muted small" });
    const item = (mark, text) => el("li", {}, el("span", { class: `swatch ${mark}`, "aria-hidden": "true" }), text);
    this.would = el("li", {}, el("span", { class: "swatch line blue", "aria-hidden": "true" }), "predicted gain", this.value);
    box.append(el("ul", { class: "legend" }, this.would, item("dotted red", "ε"), item("ring blue", "in force"),
      item("disc orange", "measured"), item("cross red", "too strong")), this.plot, this.note);
    this.u = null;
    this.seen = null;
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  /** decision: slim; surveyed: the row whose curve holds, or null. */
  show(decision, surveyed) {
    const key = JSON.stringify([decision.candidates, decision.cf, decision.epsilon, surveyed?.window]);
    if (key === this.seen) return;
    this.seen = key;
    [this.decision, this.surveyed] = [decision, surveyed];
    this.gains = surveyed?.curve.gains ?? CFS.map(() => null);
    setHidden(this.would, surveyed === null);
    setText(this.note, sentence(decision, surveyed));
    this.plot.setAttribute("aria-label", `Gain against compression factor. ${this.note.textContent}`);
    const data = [CFS, this.gains];
    if (this.u === null) this.u = new window.uPlot(this.options(), data, this.plot);
    else this.u.setData(data);
    this.showValue(null);
  }

  rebuild() {
    this.u?.destroy();
    this.u = null;
    if (this.seen === null) return;
    this.seen = null;
    this.show(this.decision, this.surveyed);
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.u !== null && width > 0 && width !== this.u.width) this.u.setSize({ width, height: HEIGHT });
  }

  showValue(at) {
    setText(this.value, at === null ? "" : `${digits(this.gains[at])} at ${cf(CFS[at])}`);
  }

  get farthest() {
    return Math.max(1000, ...this.decision.candidates.map((row) => row.cf)) * 1.15;
  }

  options() {
    const grid = { stroke: () => cssColor("--grid"), width: 1 };
    const axis = { stroke: () => cssColor("--muted"), font: FONT, grid, ticks: { show: false }, gap: 6 };
    return {
      width: this.plot.clientWidth || 300, height: HEIGHT, padding: [14, 16, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { time: false, distr: 3, log: 10, range: () => [0.9, this.farthest] },
        y: { range: () => [0, 1.03] },
      },
      axes: [
        { ...axis, size: 30, splits: () => [1, 10, 100, 1000, 1e4, 1e5].filter((value) => value <= this.farthest),
          filter: (u, all) => all, values: (u, all) => all.map(cf) },
        { ...axis, size: LEFT_AXIS, space: 40, values: (u, all) => all.map(tickPercent) },
      ],
      series: [{}, { label: "predicted gain", stroke: () => cssColor("--blue"), width: 2, fill: softFill("--blue"), points: { show: false } }],
      hooks: {
        setCursor: [(u) => this.showValue(u.cursor.left >= 0 ? u.cursor.idx : null)],
        draw: [(u) => this.draw(u)],
      },
    };
  }

  draw(u) {
    const { candidates, codec, cf: wanted, epsilon } = this.decision;
    level(u, epsilon, "--red");
    dots(u, candidates.filter((row) => known(row.gain)).map((row) => ({
      x: row.cf, y: row.gain, kind: row.cf === wanted && row.codec === codec ? "chosen" : row.verdict === "too_strong" ? "cross" : "disc",
    })));
    const measured = candidates.find((row) => row.cf === wanted && (row.codec === codec || wanted === 1))?.gain ?? null;
    const at = measured ?? this.gains[Math.round(20 * Math.log10(wanted))] ?? null;
    if (measured === null && at !== null && this.surveyed?.curve.own) dots(u, [{ x: wanted, y: at, kind: "chosen" }]);
  }
}

/** What the curve says, in one sentence; when there is none, why. */
function sentence({ epsilon, candidates }, surveyed) {
  if (surveyed === null) {
    return candidates.some((row) => known(row.gain))
      ? "No curve: it can be measured only for codecs that select by magnitude. Dots are measured gains."
      : "No curve yet. Codecs that select by magnitude measure one in each window.";
  }
  const whose = surveyed.curve.own ? "" : " It is the curve of Top-k: this codec keeps less.";
  const most = crossing(surveyed.curve.gains, epsilon);
  const reach = most === null ? "" : ` ε = ${digits(epsilon)} is met up to about ${cf(most)}.`;
  return `Measured in window ${count(surveyed.window)}, over ${count(surveyed.curve.steps)} steps and all ranks.${reach}${whose} `
    + "It is valid for the residual at that time: a stronger factor leaves a larger residual, and its curve is lower.";
}

/** The curve and its headline, for the decision that is looked at. */
export function showCurve(curve, decision, { policy }, surveyed) {
  setHidden($("curve"), policy !== "gravac" || (!decision.candidates.length && surveyed === null));
  if (!$("curve").hidden) curve.show(decision, surveyed);
}
