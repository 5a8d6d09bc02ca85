// The event stream of one job: connects, passes messages on, and reconnects with growing pauses.

import { jobPath } from "./api.js";

const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 10_000;
const MESSAGES = ["snapshot", "window", "event", "end", "job"];

export class Stream {
  /** onMessage(kind, data) for each message; onLink() whenever `up` or `retryAt` change. */
  constructor(onMessage, onLink) {
    this.onMessage = onMessage;
    this.onLink = onLink;
    this.job = null;
    this.source = null;
    this.up = false;
    this.retryAt = null;  // ms, this machine's clock; null while connecting or connected
    this.wait = FIRST_WAIT_MS;
    this.timer = 0;
    addEventListener("online", () => this.retry());
  }

  open(job) {
    this.close();
    this.job = job;
    this.wait = FIRST_WAIT_MS;
    this.connect();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.job = null;
    this.up = false;
    this.retryAt = null;
  }

  /** Retry now, without waiting for the pause: the controller answered elsewhere. */
  retry() {
    if (this.job === null || this.source !== null) return;
    clearTimeout(this.timer);
    this.connect();
  }

  /** Begin again with a fresh snapshot. */
  reopen() {
    if (this.job !== null) this.open(this.job);
  }

  /** Give up on a connection that looks open but is dead. */
  drop() {
    if (this.source !== null) this.lost(this.source);
  }

  connect() {
    const source = this.source = new EventSource(jobPath(this.job, "/events"));
    this.retryAt = null;
    for (const kind of MESSAGES) {
      source.addEventListener(kind, (message) => {
        if (source !== this.source) return;
        this.onMessage(kind, JSON.parse(message.data));
        if (!this.up) {
          this.up = true;
          this.wait = FIRST_WAIT_MS;
          this.onLink();
        }
      });
    }
    source.addEventListener("error", () => this.lost(source));
  }

  lost(source) {
    if (source !== this.source) return;
    source.close();
    this.source = null;
    this.up = false;
    const pause = this.wait * (0.75 + Math.random() / 2);  // so that many pages do not reconnect at the same time
    this.wait = Math.min(LONGEST_WAIT_MS, this.wait * 2);
    this.retryAt = Date.now() + pause;
    this.timer = setTimeout(() => this.connect(), pause);
    this.onLink();
  }
}
