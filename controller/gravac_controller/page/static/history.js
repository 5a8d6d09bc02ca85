// Windows older than the snapshot's, read in pages in the background so that the charts begin at the beginning.

import { getJson, jobPath } from "./api.js";
import { rowOf } from "./rows.js";

const MOST_WINDOWS = 20_000, LARGEST_PAGE = 500;
const RANK_ROWS_A_PAGE = 50_000;  // the controller has to read them, though they are not sent: smaller pages of wide jobs

/**
 * Windows and decisions before window `before`, for `state`, unless the view has moved on; of a very long job the newest
 * only. Raises what getJson raises.
 */
export async function readHistory(state, spec, before, stillWanted) {
  const start = Math.max(-1, before - MOST_WINDOWS - 1);
  const rows = [], decisions = [], limit = Math.max(10, Math.min(LARGEST_PAGE, Math.floor(RANK_ROWS_A_PAGE / spec.world_size)));
  for await (const views of pages(jobPath(spec.job, "/windows?ranks=false&"), limit, start, before)) {
    if (!stillWanted()) break;
    for (const view of views) if (view.report.window < before) rows.push(rowOf(view));
  }
  for await (const views of pages(jobPath(spec.job, "/decisions?"), LARGEST_PAGE, start, before)) {
    if (!stillWanted()) break;
    for (const view of views) if (view.decision.window < before) decisions.push(view);
  }
  if (stillWanted()) state.prepend(rows, decisions);
}

async function* pages(path, limit, start, before) {
  let query = start < 0 ? "" : `&after=${start}`;
  for (;;) {
    const { items, next } = await getJson(`${path}limit=${limit}${query}`);
    yield items;
    if (next === null || Number.parseInt(next, 10) >= before) return;
    query = `&after=${encodeURIComponent(next)}`;
  }
}
