// Polls the controller every few seconds: whether it answers, and its jobs.

import { HttpError, listJobs } from "./api.js";

const EVERY_MS = 5000, SOON_MS = 1500;  // soon: while there is nothing to show

export class Link {
  /** onJobs(jobs, unreadable) after each answer; onChange() when reachability changes. */
  constructor(onJobs, onChange) {
    this.onJobs = onJobs;
    this.onChange = onChange;
    this.up = null;  // not known yet
    this.lostSince = null;  // seconds, this machine's clock
    this.asking = false;
    this.empty = true;
    this.timer = 0;
  }

  start() {
    this.poll();
  }

  async poll() {
    if (this.asking) return;
    this.asking = true;
    clearTimeout(this.timer);
    try {
      const { jobs, unreadable } = await listJobs();
      this.empty = jobs.length === 0;
      this.answered();
      this.onJobs(jobs, unreadable);
    } catch (error) {
      if (error instanceof HttpError && error.status < 500) this.answered();
      else this.failed();
    }
    this.asking = false;
    this.timer = setTimeout(() => this.poll(), this.up && !this.empty ? EVERY_MS : SOON_MS);
  }

  answered() {
    const changed = this.up !== true;
    this.up = true;
    this.lostSince = null;
    if (changed) this.onChange();
  }

  failed() {
    const changed = this.up !== false;
    this.up = false;
    this.lostSince ??= Date.now() / 1000;
    if (changed) this.onChange();
  }
}
