// Fills for areas: hatched, so that neighbours differ without their colour too, or soft.

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
