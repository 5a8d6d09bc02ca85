// Canvas drawing that uPlot does not do by itself: hatched fills and decision marks.

import { colour } from "./theme.js";

const CELL = 8;

/** Fill for an area: plain, or hatched so that neighbours differ without their colour, too. */
export function areaFill(color, hatch) {
  if (hatch === null) return () => colour(color);
  let made = null, madeOf = "";
  return () => {
    const base = colour(color), ink = colour("--hatch");
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

/** Soft fill under a line: the line's colour, thinned. */
export function softFill(color) {
  return () => colour(color).replace("rgb(", "rgba(").replace(")", ", 0.13)");
}

/** Hairlines at the given x values; with `heads`, a small triangle on top of each. */
export function drawMarks(u, values, heads) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - 8 * ratio, bbox.top - 8 * ratio, bbox.width + 16 * ratio, bbox.height + 8 * ratio);
  ctx.clip();
  ctx.lineWidth = ratio;
  ctx.setLineDash([]);
  ctx.strokeStyle = colour("--mark");
  ctx.fillStyle = colour("--muted");
  const { min, max } = u.scales.x;
  for (const value of values) {
    if (value < min || value > max) continue;
    const x = Math.round(u.valToPos(value, "x", true)) + 0.5;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (heads) triangle(ctx, x, bbox.top, 5 * ratio);
  }
  ctx.restore();
}

function triangle(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y - size);
  ctx.lineTo(x, y + size * 0.8);
  ctx.closePath();
  ctx.fill();
}
