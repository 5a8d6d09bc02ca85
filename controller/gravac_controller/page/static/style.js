// The look of charts: font, labels of the axis, swatches of the legend, fills.

import { el } from "./dom.js";
import { clock, duration, tickCount } from "./format.js";
import { cssColor } from "./theme.js";

export const FONT = '12px "Segoe UI", Roboto, Ubuntu, "Noto Sans", "Helvetica Neue", Arial, sans-serif';
export const LEFT_AXIS = 58;

/** Labels of steps, of Unix seconds that are `step` seconds apart, or of seconds since a start. */
export function axisLabels(axis, values, step) {
  if (axis === "step") return values.map((value) => (Number.isInteger(value) ? tickCount(value) : ""));
  if (axis === "since") return values.map((value) => (value >= 0 ? duration(value) : ""));
  const length = step < 60 ? 8 : 5;
  return values.map((value) => (step < 86400 ? clock(value, value).slice(0, length) : clock(value, 0).slice(0, -9)));
}

/** Legend in the order of the picture's parts from the bottom up, then the rest. */
export const stackOrder = (items) => [...items.slice(0, 5).reverse(), ...items.slice(5)];

/** What a series looks like. */
export function swatch(series) {
  const kind = series.hatch !== undefined ? `area ${series.hatch ?? ""}` : series.dash ? (series.dash[0] < 4 ? "dotted" : "dash") : "line";
  const node = el("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
  node.style.setProperty("--c", `var(${series.color})`);
  return node;
}

const CELL = 8;

/** Fill for an area: plain, or hatched so that neighbors differ without their color, too. */
export function areaFill(color, hatch) {
  if (hatch === null) return () => cssColor(color);
  let made = null, madeOf = "";
  return () => {
    const base = cssColor(color), ink = cssColor("--hatch");
    if (madeOf !== base + ink) {
      made = pattern(base, ink, hatch);
      madeOf = base + ink;
    }
    return made;
  };
}

function pattern(base, ink, hatch) {
  const ratio = devicePixelRatio || 1;
  const cell = document.createElement("canvas");
  cell.width = cell.height = CELL * ratio;
  const context = cell.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = base;
  context.fillRect(0, 0, CELL, CELL);
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = 1.4;
  context.beginPath();
  if (hatch === "dots") context.rect(3, 3, 2, 2);
  const [from, to] = hatch === "up" ? [CELL, 0] : [0, CELL];
  if (hatch !== "dots") {
    for (const shift of [-CELL, 0, CELL]) {
      context.moveTo(shift - 1, from + Math.sign(from - to));
      context.lineTo(shift + CELL + 1, to + Math.sign(to - from));
    }
    context.stroke();
  } else context.fill();
  return context.createPattern(cell, "repeat");
}

/** Soft fill under a line: the line's color, thinned. */
export function softFill(color) {
  return () => cssColor(color).replace("rgb(", "rgba(").replace(")", ", 0.13)");
}
