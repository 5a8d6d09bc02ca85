// Keyboard shortcuts, on a chart and anywhere, and the list that `?` shows.

import { $, el } from "./dom.js";

export const KEYS = [
  ["On a chart", [
    ["← →", "previous or next window"], ["Page Up, Page Down", "ten windows back or forward"], ["Home, End", "first or last window"],
    ["+ −", "zoom in, zoom out"], ["Shift ← →", "pan while zoomed"], ["Esc", "deselect the window, show all"],
    ["drag", "zoom to a range; double-click shows all"], ["Shift drag", "pan"], ["Ctrl wheel, pinch", "zoom"],
    ["click", "open the window, or the decision marked ▼"],
  ]],
  ["Anywhere", [
    ["[ ]", "previous or next decision"], ["p", "pause, resume; play a trace, stop"], [", .", "in a trace: previous or next window"], ["x", "steps or time on the horizontal axis"],
    ["t", "colors: system, dark, light"], ["Esc", "close the open window or list"], ["?", "this list"],
  ]],
];

/** A key on a chart of `group` (a Charts). */
export function chartKey(event, group) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { rows } = group.state, last = rows.length - 1;
  const here = group.pin.window === null ? last + 1 : group.pin.at;
  const go = (at) => group.onPick(rows[Math.max(0, Math.min(last, at))].window);
  const middle = () => group.x[Math.max(0, Math.min(last, here))];
  const step = (by) => (event.shiftKey ? group.pan(by / 5) : go(here + by));
  const actions = {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), PageUp: () => go(here - 10), PageDown: () => go(here + 10),
    Home: () => go(0), End: () => go(last), "+": () => group.zoomAround(0.5, middle()), "=": () => group.zoomAround(0.5, middle()),
    "-": () => group.zoomAround(2, middle()), Escape: () => { group.onPick(null); group.zoom(null); },
  };
  if (!(event.key in actions)) return;
  event.preventDefault();
  event.stopPropagation();
  actions[event.key]();
}

/** Keys that work anywhere but in a field: {key: what it does}. */
export function pageKeys(actions) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=range]), select, textarea, dialog")) return;
    if (Object.hasOwn(actions, event.key)) actions[event.key]();
  });
}

/** Show the list of keys. */
export function showKeys() {
  const box = $("keys");
  if (!box.childElementCount) {
    const lists = KEYS.map(([where, keys]) => el("section", {}, el("h3", {}, where),
      el("dl", {}, ...keys.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]))));
    const close = el("button", { type: "button" }, "Close");
    close.addEventListener("click", () => box.close());
    box.append(el("h2", { id: "keys-title" }, "Keys and gestures"), el("div", { class: "keys" }, ...lists), close);
  }
  if (!box.open) box.showModal();
}
