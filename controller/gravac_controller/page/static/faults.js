// Faults (how often, first and last) and the events in order.

import { now } from "./api.js";
import { $, el } from "./dom.js";
import { clock, count } from "./format.js";
import { EVENT, FAULTS, nameOf } from "./words.js";

/** [what, how often, first, last] of everything that happened at least once. */
function lines({ job, rows }) {
  const found = [
    ["steps with a non-finite gradient", job.totals.nonfinite_steps, ...ends(rows, (row) => row.nonfinite > 0)],
    ["failed steps", job.totals.failed_steps, ...ends(rows, (row) => row.failed > 0)],
    ["windows never received", job.missing_windows, "", ""],
  ];
  for (const [kind, times] of Object.entries(job.event_counts)) {
    if (!FAULTS.has(kind) || kind === "nonfinite" || kind === "failed" || kind === "gap") continue;
    const seen = job.events.filter(({ event }) => event.kind === kind);
    const all = seen.length === times;  // the list holds the newest 100
    found.push([nameOf(EVENT, kind), times, all ? clock(seen[0].time, now()) : "earlier", seen.length ? clock(seen.at(-1).time, now()) : "earlier"]);
  }
  return found.filter(([, times]) => times > 0);
}

function ends(rows, wrong) {
  const windowOf = (row) => (row === undefined ? "earlier" : `window ${count(row.window)}`);
  return [windowOf(rows.find(wrong)), windowOf(rows.findLast(wrong))];
}

export function showFaults(state) {
  const table = $("faults"), found = lines(state), key = JSON.stringify(found);
  if (table.dataset.key === key) return;
  table.dataset.key = key;
  if (!found.length) {
    table.replaceChildren(el("tbody", {}, el("tr", {}, el("td", { class: "muted" }, "No fault so far."))));
    return;
  }
  const head = el("tr", {}, ...[["Fault"], ["Times", "num"], ["First"], ["Last"]].map(([name, kind]) => el("th", { scope: "col", class: kind ?? null }, name)));
  const body = found.map(([what, times, first, last]) => el("tr", {}, el("th", { scope: "row", class: "fault" }, `▲ ${what}`),
    el("td", { class: "num" }, count(times)), el("td", {}, first), el("td", {}, last)));
  table.replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
}

export function showEvents(job, unreadable) {
  const list = $("events"), key = JSON.stringify([job.events, unreadable]);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const items = [...job.events].reverse().map(({ time, event }) => item(clock(time, now()), event));
  for (const { job: name, reason } of unreadable) {
    items.unshift(item("", { kind: "failed", window: null, message: `The journal of “${name}” cannot be read: ${reason}` }));
  }
  list.replaceChildren(...(items.length ? items : [el("li", { class: "muted" }, "No events so far.")]));
}

function item(time, { kind, window, message }) {
  const fault = FAULTS.has(kind);
  return el("li", { class: fault ? "is-fault" : null },
    el("span", { class: "muted num" }, time), " ",
    el("span", { class: "kind" }, `${fault ? "▲ " : ""}${nameOf(EVENT, kind)}`),
    window === null ? null : el("span", { class: "muted" }, ` window ${count(window)}`), " ",
    el("span", { class: "message" }, message));
}
