// The decision log, newest first.

import { now } from "./api.js";
import { $, el } from "./dom.js";
import { clock, count, planChange } from "./format.js";
import { RULE, nameOf } from "./words.js";

const MOST_ROWS = 300;

export class DecisionLog {
  /** onPick(window): the person chose a decision. */
  constructor(onPick) {
    this.table = $("log");
    this.all = $("log-all");
    this.rows = new Map();  // key of a decision -> its row
    this.picked = null;
    this.version = null;
    this.all.addEventListener("change", () => this.redraw?.());
    this.table.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-window]");
      if (row) onPick(Number(row.dataset.window));
    });
    const names = ["Time", "Step", "Window", "Epoch", "From → to", "Rule", "Reason"];
    this.body = el("tbody");
    this.table.append(el("thead", {}, el("tr", {}, ...names.map((name, i) =>
      el("th", { scope: "col", class: i > 0 && i < 4 ? "num" : null }, name)))), this.body);
  }

  clear() {
    this.rows.clear();
    this.body.replaceChildren();
    this.version = null;
  }

  show(state) {
    this.redraw = () => this.show(state);
    const version = `${state.version}/${this.all.checked}`;
    if (version === this.version) return;
    this.version = version;
    const wanted = state.log(this.all.checked).slice(-MOST_ROWS).reverse();
    const keys = new Set();
    let next = this.body.firstChild;
    for (const view of wanted) {
      const key = `${view.window}/${view.epoch}/${view.time}`;
      keys.add(key);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, row = decisionRow(view, state));
      if (row === next) next = next.nextSibling;
      else this.body.insertBefore(row, next);
    }
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    this.pick(this.picked);
  }

  /** Mark the row of a window (null: none). */
  pick(window) {
    this.picked = window;
    for (const row of this.rows.values()) row.classList.toggle("picked", row.dataset.window === String(window));
  }
}

function decisionRow(view, state) {
  const row = state.rows[state.indexOf(view.window)];
  const step = view.window < 0 ? "start" : row ? count(row.last) : "–";
  const open = el("button", { type: "button", class: "link", title: "Show this window on the charts" },
    view.window < 0 ? "start" : count(view.window));
  return el("tr", { "data-window": String(view.window), class: view.changed ? null : "unchanged" },
    el("td", {}, clock(view.time, now())), el("td", { class: "num" }, step), el("td", { class: "num" }, open),
    el("td", { class: "num" }, count(view.epoch)), el("td", { class: "change" }, planChange(view)),
    el("td", {}, nameOf(RULE, view.rule)), el("td", { class: "why" }, view.reason));
}
