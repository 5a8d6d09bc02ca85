// A window in detail: the line about the one under the cursor, and the card of the one that was picked.

import { now } from "./api.js";
import { $, el, Facts, setHidden, setText } from "./dom.js";
import { cf, clock, count, digits, fine, known, NONE, planChange, ratio, seconds, times } from "./format.js";
import { PHASE, RULE, nameOf } from "./words.js";

export class Card {
  /** onPick(window or null); onCopy(): copy a link to this view. */
  constructor(onPick, onCopy) {
    this.box = $("card");
    this.title = el("h3", { id: "card-title", tabindex: "-1" });
    this.meta = el("p", { class: "muted small" });
    this.reason = el("p", { class: "card-reason" });
    const list = el("dl", { class: "tiles", "aria-label": "Evidence" });
    this.facts = new Facts(list);
    this.before = button("‹ Earlier change", "key: [", () => onPick(this.earlier));
    this.after = button("Later change ›", "key: ]", () => onPick(this.later));
    const copy = button("Copy link", "A link to this view", onCopy);
    const close = button("Close", "key: Esc", () => onPick(null));
    this.box.append(el("div", { class: "title-row" }, this.title, el("p", { class: "card-buttons" }, this.before, this.after, copy, close)),
      this.meta, this.reason, list);
  }

  /** window: the one picked (-1: the start), or null. */
  show(state, window) {
    const row = window === null ? undefined : state.rows[state.indexOf(window)];
    const view = window === null ? null : state.decisionOn(window);
    setHidden(this.box, view === null && row === undefined);
    if (this.box.hidden) return;
    const changes = state.log(false);
    this.earlier = changes.findLast((change) => change.window < window)?.window ?? null;
    this.later = changes.find((change) => change.window > window)?.window ?? null;
    this.before.disabled = this.earlier === null;
    this.after.disabled = this.later === null;
    setText(this.title, titleOf(view, window));
    setText(this.meta, metaOf(view, row, window));
    setText(this.reason, view === null ? "This page does not have the decision on this window; the trace does." : view.reason);
    this.facts.set(evidence(view, row, state.job));
  }
}

function button(text, title, onClick) {
  const node = el("button", { type: "button", title }, text);
  node.addEventListener("click", onClick);
  return node;
}

function titleOf(view, window) {
  if (view === null) return `Window ${count(window)}`;
  return `${view.changed ? "Decision" : "No change"}: ${planChange(view)}`;
}

function metaOf(view, row, window) {
  const parts = [window < 0 ? "at the start" : `after window ${count(window)}`];
  if (row !== undefined) parts.push(`step ${count(row.last)}`);
  const time = view?.time ?? row?.time ?? null;
  if (known(time)) parts.push(clock(time, now()));
  if (view !== null) parts.push(`epoch ${count(view.epoch)}`, nameOf(PHASE, view.phase).toLowerCase(), `rule: ${nameOf(RULE, view.rule)}`);
  return parts.join(" · ");
}

/** The evidence for the decision: the window, and the dense step that it is compared with. */
function evidence(view, row, { policy, baseline_step_seconds: base }) {
  const unknown = row === undefined, paper = policy === "gravac";
  const against = (value) => (view === null || value === null ? "" : value >= view.epsilon ? `≥ ε ${digits(view.epsilon)}` : `below ε ${digits(view.epsilon)}`);
  const faults = unknown ? 0 : row.nonfinite + row.failed;
  return [
    ["sent", "Sent", unknown ? null : row.plan, unknown ? "" : nameOf(PHASE, row.phase).toLowerCase()],
    ["useful", "Useful throughput", unknown || !known(row.useful) ? null : digits(row.useful), `samples/s: T_sys ${unknown ? NONE : digits(row.speed)} × η`],
    ["efficiency", "Efficiency η", unknown || !known(row.efficiency) ? null : ratio(row.efficiency), unknown ? "" : efficiencyRange(row)],
    ["gain", "Gain", unknown || !paper ? null : digits(row.gain), unknown ? "" : against(row.gain)],
    ["candidate", "Candidate's gain", unknown || !paper || row.gainCandidate === null ? null : digits(row.gainCandidate), unknown ? "" : against(row.gainCandidate)],
    ["backlog", "Backlog τ", unknown ? null : digits(row.backlog), unknown ? "" : `residual ratio ${digits(row.residual)}`],
    ["step", "Step", unknown ? null : seconds(row.seconds / (row.last - row.first + 1)), known(base) ? `dense: ${seconds(base)}` : ""],
    ["speed", "T_sys", unknown ? null : digits(row.speed), unknown || !paper || !known(row.compression) ? "" : `T_comp ${digits(row.compression)} samples/s`],
    ["wire", "On the wire", unknown ? null : times(row.wire), ""],
    ["loss", "Loss", unknown || row.loss === null ? null : fine(row.loss), ""],
    ["faults", "Faults", faults > 0 ? count(faults) : null, faults > 0 ? `${count(row.nonfinite)} non-finite, ${count(row.failed)} failed steps` : ""],
    ["limits", "Limits", view === null || !paper ? null : `ε ${digits(view.epsilon)}`, view === null ? "" : `minimum ${cf(view.minimum)}, candidate ${cf(view.cf)}`],
  ];
}

/** The range in which a statistical efficiency lies. */
const efficiencyRange = ({ efficiencyLow: low, efficiencyHigh: high }) => (!known(low) || low === high ? "" : `${ratio(low)} to ${ratio(high)}`);

/** index: entry under the cursor; null: nothing is pointed at. */
export function showReadout(state, index) {
  const row = index === null ? undefined : state.rows[index];
  if (row === undefined) {
    const first = state.rows[0];
    setText($("readout"), state.trimmed && first ? `Windows before ${count(first.window)} are in the trace only.` : "");
    return;
  }
  const decided = state.log(false).find((view) => view.window === row.window);
  const faults = row.nonfinite + row.failed > 0 ? ` · ${count(row.nonfinite)} non-finite, ${count(row.failed)} failed steps` : "";
  const then = decided ? ` · then: ${decided.reason}` : "";
  setText($("readout"), `Window ${count(row.window)} · step ${count(row.last)} · ${clock(row.time, now())} · `
    + `${row.plan} · ${nameOf(PHASE, row.phase).toLowerCase()} · epoch ${count(row.epoch)}${faults}${then}`);
}
