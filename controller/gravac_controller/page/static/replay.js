// Showing a trace: the same page, as it was after any window. The server is `gravac ui`.

import { getJson, jobPath } from "./api.js";
import { $, setHidden } from "./dom.js";
import { Link } from "./link.js";
import { rowsOf, viewsOf } from "./rows.js";
import { showClock, showLists } from "./screen.js";
import { Scrubber } from "./scrubber.js";
import { replayStatus } from "./status.js";

const LOOK_AGAIN_MS = 400;  // while its server reads on
const LONG_MS = 60_000;  // a long trace is some 20 MB, from this machine to itself

export class Replay {
  constructor(state, screen, share) {
    Object.assign(this, { state, screen, share });
    this.job = this.shown = null;  // the name; the job at the window that is shown
    this.all = { rows: [], decisions: [] };
    this.problem = "";  // why the trace ends where it does
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
    this.share.show(job);
    try {
      await this.read();
    } catch {
      this.job = null;  // lost meanwhile: begin again when it answers
    }
  }

  /** Show what the server has read of the trace, and again when there is much more of it, until that is all. */
  async read() {
    for (let known = 0, done = false; !done;) {
      const answer = await getJson(jobPath(this.job, `/history?known=${known}`), LONG_MS);
      ({ done, problem: this.problem } = answer);
      if (answer.history !== undefined) {
        known = answer.windows;
        this.all = { rows: rowsOf(answer.history), decisions: viewsOf(answer.history) };
        this.scrubber.show(this.all.rows, known);
        await this.look();
      }
      this.scrubber.reading(done ? null : answer.share);
      setHidden($("trace"), !done);
      if (!done) await new Promise((resolve) => { setTimeout(resolve, LOOK_AGAIN_MS); });
    }
    this.tick();
  }

  /** Show the requested window. While a request runs, later ones wait, and only the newest of them is sent. */
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
    const last = this.all.rows.at(-1)?.window ?? -1;
    return Math.min(this.wanted ?? last, last);
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
    showClock(this.shown, replayStatus(this.shown, this.link.lostSince, this.problem), null);
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
