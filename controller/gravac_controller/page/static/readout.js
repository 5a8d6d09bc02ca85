// The line above the charts: what the window under the cursor was.

import { $, setText } from "./dom.js";
import { cf, clock, count } from "./format.js";
import { now } from "./api.js";
import { PHASE, say } from "./words.js";

/** index: entry under the cursor; null: nothing is pointed at. */
export function showReadout(state, index) {
  const row = index === null ? undefined : state.rows[index];
  if (row === undefined) {
    const first = state.rows[0];
    setText($("readout"), state.trimmed && first ? `Older windows than ${count(first.window)} are in the trace only.` : "");
    return;
  }
  const decided = state.log(false).find((view) => view.window === row.window);
  const faults = row.nonfinite + row.failed > 0 ? ` · ${count(row.nonfinite)} non-finite, ${count(row.failed)} failed steps` : "";
  const then = decided ? ` · then: ${decided.reason}` : "";
  setText($("readout"), `Window ${count(row.window)} · step ${count(row.last)} · ${clock(row.time, now())} · `
    + `${cf(row.cf)} · ${say(PHASE, row.phase).toLowerCase()} · epoch ${count(row.epoch)}${faults}${then}`);
}
