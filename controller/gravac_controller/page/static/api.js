// The controller's REST answers, its clock, and the windows older than the snapshot's.

import { rowOf } from "./rows.js";

const TIMEOUT_MS = 8000;
const SKEW_LIMIT_SECONDS = 2;  // a Date header is whole seconds; less than this is noise
let skewSeconds = 0;

/** Now by the controller's clock, in Unix seconds: report times are its, and this machine's clock may differ. */
export const now = () => Date.now() / 1000 + skewSeconds;

export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** GET a JSON answer. Raises HttpError for 4xx and 5xx, another error when the controller cannot be reached. */
export async function getJson(path, timeout = TIMEOUT_MS) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(timeout), cache: "no-store" });
  const date = Date.parse(answer.headers.get("date") ?? "");
  if (Number.isFinite(date)) {
    const skew = date / 1000 + 0.5 - Date.now() / 1000;
    skewSeconds = Math.abs(skew) < SKEW_LIMIT_SECONDS ? 0 : skew;
  }
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/** {tag}: the ETag of the override, which an order must name. Raises what getJson raises. */
export async function orderState(job) {
  const answer = await fetch(jobPath(job, "/override"), { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!answer.ok) throw await refusal(answer);
  return { tag: answer.headers.get("etag") };
}

/** Give an order. Raises HttpError when it is refused, another error when the controller cannot be reached. */
export async function order(job, body, tag, token) {
  const answer = await fetch(jobPath(job, "/override"), {
    method: "PUT", signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", redirect: "error", body: JSON.stringify(body),
    headers: { "content-type": "application/json", "if-match": tag, authorization: `Bearer ${token}` },
  });
  if (!answer.ok) throw await refusal(answer);
}

async function refusal(answer) {
  const body = await answer.json().catch(() => ({}));
  return new HttpError(answer.status, body.detail ?? answer.statusText);
}

export const jobPath = (job, rest = "") => `/v1/jobs/${encodeURIComponent(job)}${rest}`;

const PAGES = 50;

/** All jobs and the journals that cannot be read. */
export async function listJobs() {
  const jobs = [];
  let unreadable = [], path = "/v1/jobs";
  for (let page = 0; page < PAGES && path; page += 1) {
    const body = await getJson(path);
    jobs.push(...body.items);
    unreadable = body.unreadable ?? [];
    path = body.next === null ? null : `/v1/jobs?after=${encodeURIComponent(body.next)}`;
  }
  return { jobs, unreadable };
}

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
