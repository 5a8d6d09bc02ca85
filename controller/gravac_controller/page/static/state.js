// What the page knows of one job: the fold of its event stream. No document here, so a trace can feed it too.

import { Columns, rowOf } from "./rows.js";

const MOST_WINDOWS = 20_000;  // older ones leave the charts; the trace has them all
const TRIM = 2_000;

export class State {
  constructor() {
    this.columns = new Columns();
    this.clear();
  }

  clear() {
    this.job = null;
    this.rows = [];
    this.decisions = new Map();  // by window
    this.byEpoch = new Map();
    this.columns.clear();
    this.trimmed = false;
    this.version = (this.version ?? 0) + 1;  // grows with every change
    this.logged = null;
  }

  snapshot({ job, windows, decisions }) {
    const first = windows.length ? windows[0].report.window : 0;
    const same = this.job !== null && this.job.job === job.job && this.job.started_time === job.started_time;
    const older = same ? this.rows.filter((row) => row.window < first) : [];
    const fits = older.length > 0 && older[older.length - 1].window === first - 1;
    if (!fits) this.clear();
    this.rows = [...(fits ? older : []), ...windows.map(rowOf)];
    this.setJob(job);
    for (const view of decisions) this.addDecision(view);
    this.rebuild();
  }

  window({ window, decision, job }) {
    const row = rowOf(window), last = this.rows[this.rows.length - 1];
    const baselineMoved = job.baseline_step_seconds !== this.job?.baseline_step_seconds;
    this.setJob(job);
    this.addDecision(decision);
    if (last && row.window <= last.window) return;  // known already: a resumed stream may repeat itself
    this.rows.push(row);
    if (this.rows.length > MOST_WINDOWS + TRIM) {
      this.rows.splice(0, TRIM);
      this.trimmed = true;
      this.rebuild();
    } else if (baselineMoved) this.rebuild();
    else this.push(row);
  }

  /** Older windows and decisions, read page by page after the snapshot. */
  prepend(rows, decisions) {
    const first = this.rows.length ? this.rows[0].window : Infinity;
    const older = rows.filter((row) => row.window < first);
    this.rows = [...older, ...this.rows].slice(-MOST_WINDOWS);
    for (const view of decisions) this.addDecision(view);
    this.rebuild();
  }

  /** Replace everything, from another source than the stream: rows, decision views, and their job. */
  replay(rows, decisions, job) {
    this.clear();
    this.rows = rows;
    this.setJob(job);
    for (const view of decisions) this.addDecision(view);
    this.rebuild();
  }

  setJob(job) {
    this.job = job;
    this.version += 1;
    if (!this.byEpoch.has(job.decision.epoch)) this.byEpoch.set(job.decision.epoch, slim(unseen(job.decision), job.spec.compressor));
  }

  addDecision(view) {
    const { window, epoch } = view.decision;
    const key = `${window}/${epoch}`;  // a resumed trainer may get a second decision for the same window
    if (!this.decisions.has(key)) this.decisions.set(key, slim(view, this.job.spec.compressor));
    this.byEpoch.set(epoch, this.decisions.get(key));
    this.version += 1;
  }

  push(row) {
    this.columns.push(row, this.byEpoch.get(row.epoch) ?? null, this.job.baseline_step_seconds, this.job.policy === "gravac");
    this.version += 1;
  }

  rebuild() {
    this.columns.clear();
    for (const row of this.rows) this.push(row);
  }

  /** Decisions, oldest first; only those that changed something unless `all`. */
  log(all) {
    if (this.logged !== this.version) {
      this.logged = this.version;
      this.every = [...this.decisions.values()].sort((a, b) => a.window - b.window || a.epoch - b.epoch);
      this.changes = this.every.filter((view) => view.changed);
    }
    return all ? this.every : this.changes;
  }

  /** The decision that began the epoch in force, or null when it is not known. */
  get beginning() {
    return this.log(false).findLast((view) => view.epoch === this.job.decision.epoch) ?? null;
  }

  /** The decision made on a window (-1: the one the job began with), or null when it is not known. */
  decisionOn(window) {
    return this.log(true).findLast((view) => view.window === window) ?? null;
  }

  /** The decision in force, with its time where that is known. */
  get inForce() {
    const { decision } = this.job;
    return this.decisions.get(`${decision.window}/${decision.epoch}`)
      ?? slim(unseen(decision), this.job.spec.compressor);
  }

  /** The newest row up to place `at` that carries a gain curve, or null. */
  surveyed(at) {
    for (let i = Math.min(at, this.rows.length - 1); i >= 0; i -= 1) if (this.rows[i].curve !== null) return this.rows[i];
    return null;
  }

  /** Place of a window in rows and columns, or -1. Windows have gaps only where reports were lost. */
  indexOf(window) {
    let low = 0, high = this.rows.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1, here = this.rows[middle].window;
      if (here === window) return middle;
      if (here < window) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }
}

const unseen = (decision) => ({ time: null, changed: false, decision });  // its view has not come: plans have no words yet

/** A decision view with the codec and the words of every plan: where one has no codec, the job's compressor. */
const slim = ({ time, changed, plan_before: before, plan, candidate_plans: plans, decision }, compressor) => {
  const named = (codec, value, words) => ({ codec: codec ?? compressor, plan: words ?? (value === 1 ? "dense" : `${codec ?? compressor} · ${value}x`) });
  return {
    time, changed, before, ...named(decision.codec, decision.cf_candidate, plan), window: decision.window, epoch: decision.epoch,
    phase: decision.phase, cf: decision.cf_candidate, minimum: decision.cf_minimum, rule: decision.rule, reason: decision.reason,
    epsilon: decision.epsilon, candidates: decision.candidates.map((row, i) => ({ ...row, ...named(row.codec, row.cf, plans?.[i]) })),
  };
};
