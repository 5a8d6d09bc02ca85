// Windows older than the snapshot's, read in pages in the background so that the charts begin at the beginning.

import { getJson, jobPath } from "./api.js";
import { rowOf } from "./rows.js";

const MOST_WINDOWS = 20_000, LARGEST_PAGE = 500;
const RANK_ROWS_A_PAGE = 50_000;  // jobs of many ranks have long windows: smaller pages

/**
 * Read the windows and decisions before window `before` and hand them to `state`, unless the view has moved on.
 * Of a very long job the newest windows only. Raises what getJson raises.
 */
export async function readHistory(state, spec, before, stillWanted) {
  const start = Math.max(-1, before - MOST_WINDOWS - 1);
  const limit = Math.max(10, Math.min(LARGEST_PAGE, Math.floor(RANK_ROWS_A_PAGE / spec.world_size)));
  const rows = [], decisions = [];
  for await (const views of pages(jobPath(spec.job, "/windows"), start, before, limit)) {
    if (!stillWanted()) return;
    for (const view of views) if (view.report.window < before) rows.push(rowOf(view));
  }
  for await (const views of pages(jobPath(spec.job, "/decisions"), start, before, LARGEST_PAGE)) {
    if (!stillWanted()) return;
    for (const view of views) if (view.decision.window < before) decisions.push(view);
  }
  state.prepend(rows, decisions);
}

async function* pages(path, start, before, limit) {
  let query = start < 0 ? "" : `&after=${start}`;
  for (;;) {
    const { items, next } = await getJson(`${path}?limit=${limit}${query}`);
    yield items;
    if (next === null || Number(next) >= before) return;
    query = `&after=${encodeURIComponent(next)}`;
  }
}
