// Marks that uPlot does not draw by itself, distinguished by shape as well as by color.

import { cssColor } from "./theme.js";

/** Draw inside the plot only, in device pixels. */
function within(u, draw) {
  const { ctx, bbox } = u, ratio = devicePixelRatio || 1, edge = 9 * ratio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - edge, bbox.top - edge, bbox.width + 2 * edge, bbox.height + edge);
  ctx.clip();
  ctx.setLineDash([]);
  draw(ctx, ratio, bbox);
  ctx.restore();
}

/** Hairlines at the given x values; with `heads`, a small triangle on top of each. */
export function drawMarks(u, values, heads) {
  within(u, (ctx, ratio, bbox) => {
    ctx.lineWidth = ratio;
    ctx.strokeStyle = cssColor("--mark");
    ctx.fillStyle = cssColor("--muted");
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
  });
}

function triangle(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y - size);
  ctx.lineTo(x, y + size * 0.8);
  ctx.closePath();
  ctx.fill();
}

/** A dotted line across the plot at a y value. */
export function level(u, value, color) {
  within(u, (ctx, ratio, bbox) => {
    const y = Math.round(u.valToPos(value, "y", true)) + 0.5;
    ctx.strokeStyle = cssColor(color);
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([2 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  });
}

/** Points [{x, y, kind}]: `chosen` a ring around a disc, `cross` too strong, `disc` the rest. */
export function dots(u, points) {
  within(u, (ctx, ratio) => {
    for (const { x, y, kind } of points) {
      const [left, top] = [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
      if (kind === "cross") cross(ctx, left, top, 4.5 * ratio, 2.5 * ratio);
      else disc(ctx, left, top, 4 * ratio, cssColor(kind === "chosen" ? "--blue" : "--orange"));
      if (kind === "chosen") ring(ctx, left, top, 8 * ratio, 2.5 * ratio);
    }
  });
}

function disc(ctx, x, y, size, fill) {
  ctx.fillStyle = fill;
  ctx.beginPath();
  ctx.arc(x, y, size, 0, 2 * Math.PI);
  ctx.fill();
}

function ring(ctx, x, y, size, width) {
  ctx.strokeStyle = cssColor("--blue");
  ctx.lineWidth = width;
  ctx.beginPath();
  ctx.arc(x, y, size, 0, 2 * Math.PI);
  ctx.stroke();
}

function cross(ctx, x, y, size, width) {
  ctx.strokeStyle = cssColor("--red");
  ctx.lineWidth = width;
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x - size, y + size);
  ctx.lineTo(x + size, y - size);
  ctx.stroke();
}
