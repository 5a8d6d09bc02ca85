// Following a job while it runs: the job list and the event stream feed the state, drawn at most twice a second.

import { readHistory } from "./api.js";
import { $ } from "./dom.js";
import { chooseJob } from "./jobs.js";
import { Link } from "./link.js";
import { showClock, showLists } from "./screen.js";
import { statusOf } from "./status.js";
import { Stream } from "./stream.js";

const DRAW_EVERY_MS = 500;
const HISTORY_AGAIN_MS = 5000;  // after a page of it did not come

export class Live {
  /** state, screen, share: the parts that it updates. */
  constructor(state, screen, share) {
    Object.assign(this, { state, screen, share });
    this.current = null;  // name of the job on show
    this.wanted = null;  // what the address asks for; null: any
    this.missing = null;
    this.jobs = [];
    this.unreadable = [];
    this.streamLost = null;  // seconds, this machine's clock
    this.paused = null;  // since when, seconds
    this.latestJob = null;  // the newest view of the job; the same as state.job unless paused
    this.drawTimer = 0;
    this.drawnAt = -Infinity;
    this.stream = new Stream((kind, data) => this.message(kind, data), () => this.connected());
    this.link = new Link((jobs, unreadable) => this.listed(jobs, unreadable), () => {
      if (this.link.up) this.stream.retry();
      else this.stream.drop();  // it may look open and be dead: after a sleep, or through a broken tunnel
      this.tick();
    });
    $("pause").addEventListener("click", () => this.toggle());
    document.addEventListener("visibilitychange", () => this.later());
  }

  start() {
    this.link.start();
  }

  /** What the address holds of this. */
  get route() {
    return { job: this.wanted };
  }

  go({ job }) {
    this.wanted = job;
    if (this.link.up !== null) this.listed(this.jobs, this.unreadable);
    this.later();
  }

  message(kind, data) {
    this.streamLost = null;
    if (data.job) this.latestJob = data.job;
    if (this.paused !== null) return;  // read again on resuming
    if (kind === "snapshot") {
      this.state.snapshot(data);
      this.readHistory(data.job.spec);
    } else if (kind === "window") {
      this.state.window(data);
      // Messages that are sent together all have the newest job: draw at the last one.
      if (data.window.report.window < data.job.latest.report.window) return;
    } else if (data.job) this.state.setJob(data.job);
    this.later();
  }

  /** The windows before those on show, until they are here or another job is on show. */
  readHistory(spec) {
    const first = this.state.rows[0]?.window ?? 0, job = this.current;
    const wanted = () => this.current === job && this.state.rows[0]?.window === first;
    const again = () => wanted() && this.readHistory(spec);
    if (first > 0) readHistory(this.state, spec, first, wanted).then(() => this.later(), () => setTimeout(again, HISTORY_AGAIN_MS));
  }

  connected() {
    if (this.stream.up) this.streamLost = null;
    else this.streamLost ??= Date.now() / 1000;
    this.tick();
    if (!this.stream.up) this.link.poll();
  }

  listed(jobs, unreadable) {
    Object.assign(this, { jobs, unreadable });
    const job = chooseJob(jobs, this.wanted);
    this.missing = job === null && this.wanted !== null ? this.wanted : null;
    // A job once shown stays: another one that starts is offered in the list, not forced on the reader.
    if (this.current === null || this.wanted !== null || !jobs.some((one) => one.job === this.current)) this.show(job);
    this.tick();
  }

  show(job) {
    if (job === this.current) return;
    this.current = job;
    this.streamLost = this.latestJob = null;
    this.state.clear();
    this.screen.clear();
    this.stream.close();
    if (job === null) return;
    this.stream.open(job);
    this.share.show(job);
  }

  /** Draw soon, but not more often than twice a second, and not while the tab is hidden or the page is paused. */
  later() {
    if (this.drawTimer || this.paused !== null || document.hidden) return;
    this.drawTimer = setTimeout(() => this.draw(), Math.max(0, this.drawnAt + DRAW_EVERY_MS - performance.now()));
  }

  draw() {
    this.drawTimer = 0;
    this.tick();
    if (this.state.job === null || this.paused !== null) return;
    this.drawnAt = performance.now();  // not before there is something to draw: the first picture waits for nothing
    this.screen.draw(this.unreadable);
  }

  /** What changes with the clock alone: status, ages, banner, title. */
  tick() {
    const { link, stream, current, missing } = this;
    const losses = [link.lostSince, this.streamLost].filter((since) => since !== null);
    const lostSince = losses.length ? Math.min(...losses) : null;
    const retryAt = stream.retryAt === null ? null : stream.retryAt / 1000;
    const status = statusOf(this.latestJob, { up: link.up, opening: current !== null, lostSince, retryAt, missing });
    showClock(this.latestJob, status, this.paused);
    showLists(this.state.job !== null, this);
  }

  /** Pause or resume. */
  toggle() {
    this.paused = this.paused === null ? Date.now() / 1000 : null;
    $("pause").setAttribute("aria-pressed", String(this.paused !== null));
    $("pause").textContent = this.paused === null ? "Pause" : "Resume";
    if (this.paused === null) this.stream.reopen();
    this.tick();
  }
}
