// Parts of a chart's legend.

import { el } from "./dom.js";

/** Legend in the order of the picture's parts from the bottom up, then the rest. */
export const stackOrder = (items) => [...items.slice(0, 5).reverse(), ...items.slice(5)];

/** What a series looks like. */
export function swatch(series) {
  const kind = series.hatch !== undefined ? `area ${series.hatch ?? ""}` : series.dash ? (series.dash[0] < 4 ? "dotted" : "dash") : "line";
  const node = el("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
  node.style.setProperty("--c", `var(${series.color})`);
  return node;
}
