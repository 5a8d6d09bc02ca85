// The cells of the heat map: one hue, darker the slower, so that it can be read without telling colours apart.

import { colour } from "./theme.js";

const STEPS = 16;
const FULL = 200;  // per cent of the median rank's own time that has the strongest colour

/** Strength of a cell, 0 to 1: small differences are spread, as most ranks are alike. */
export const strength = (percent) => Math.min(1, Math.max(0, (percent - 100) / (FULL - 100))) ** 0.6;

/** Draw columns of {percent} into a canvas of so many CSS pixels. Unknown cells stay empty. */
export function paintHeat(canvas, columns, rows, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d"), palette = ramp(colour("--heat-low"), colour("--heat-high"));
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
