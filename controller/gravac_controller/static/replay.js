// Looking back at a trace: the same page, as it was after any window. The server is `gravac ui`.

import { getJson, jobPath } from "./api.js";
import { $, setHidden } from "./dom.js";
import { readAll } from "./history.js";
import { Link } from "./link.js";
import { showClock, showLists } from "./screen.js";
import { Scrubber } from "./scrubber.js";
import { backAt } from "./status.js";

export class Replay {
  constructor(state, screen, take) {
    Object.assign(this, { state, screen, take });
    this.job = this.shown = null;  // the name; the job as of the window on show
    this.all = { rows: [], decisions: [] };
    this.wanted = null;  // a window; null: the last
    this.asking = false;
    this.link = new Link(([one]) => this.found(one.job), () => this.tick());
    this.scrubber = new Scrubber((window) => {
      this.wanted = window;
      this.screen.onView();
      this.look();
    });
    setHidden($("pause"), true);
    setHidden($("scrubber"), false);
  }

  start() {
    this.link.start();
  }

  get route() {
    return { at: this.wanted };
  }

  go({ at }) {
    this.wanted = at;
    if (this.job !== null) this.look();
  }

  /** The server answered and named its one job. */
  async found(job) {
    if (this.job !== null) return;
    this.job = job;
    this.take.show(job);
    try {
      const end = await getJson(jobPath(job));
      const last = end.latest?.report.window ?? -1;
      this.all = await readAll(end.spec, last, (share) => this.scrubber.reading(share));
      this.scrubber.show(this.all.rows);
      await this.look();
    } catch {
      this.job = null;  // lost meanwhile: begin again when it answers
    }
  }

  /** Show the window that is wanted; while one is asked for, others wait, and only the newest of them is asked. */
  async look() {
    if (this.asking) return;
    this.asking = true;
    try {
      let window = null;
      while (window !== this.target) {
        window = this.target;
        this.show(window, await getJson(jobPath(this.job, `/as-of/${window}`)));
      }
    } finally {
      this.asking = false;
    }
  }

  get target() {
    return this.wanted ?? this.all.rows.at(-1)?.window ?? -1;
  }

  show(window, job) {
    const { rows, decisions } = this.all;
    this.shown = job;
    this.state.replay(rows.slice(0, count(rows, ({ window: one }) => one <= window)),
      decisions.slice(0, count(decisions, ({ decision }) => decision.window <= window)), job);
    this.tick();
    this.screen.draw([]);
    this.scrubber.at(window, this.state.rows.at(-1) ?? null);
  }

  /** What changes with the clock alone. */
  tick() {
    showClock(this.shown, backAt(this.shown, this.link.lostSince), null);
    showLists(this.shown !== null, { jobs: [], unreadable: [], current: this.job, missing: null });
  }

  /** Play or stop. */
  toggle() {
    this.scrubber.toggle();
  }

  step(by) {
    this.scrubber.step(by);
  }
}

/** How many entries at the front hold. */
function count(entries, holds) {
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(entries[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}
