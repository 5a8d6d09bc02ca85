// The bar below a trace: selects the window that is shown, and plays the trace.

import { now } from "./api.js";
import { $, setText } from "./dom.js";
import { clock, count } from "./format.js";

const LONGEST_MS = 30_000, WINDOW_MS = 500;  // playing takes half a second a window, but not more than so much in all
const FRAME_MS = 100;

export class Scrubber {
  /** onMove(window): the person chose one (-1: the start), or null for the last. */
  constructor(onMove) {
    this.onMove = onMove;
    this.windows = [-1];  // by place of the slider; the first is the start
    this.place = 0;
    this.timer = 0;
    this.where = "Reading the trace";
    this.left = this.rest = "";  // what is not drawn, what is not read yet
    this.range = $("scrub");
    this.range.addEventListener("input", () => {
      this.stop();
      this.move(Number(this.range.value));
    });
    $("scrub-play").addEventListener("click", () => this.toggle());
    $("scrub-back").addEventListener("click", () => this.step(-1));
    $("scrub-on").addEventListener("click", () => this.step(1));
  }

  /** share: how much of the trace has been read, 0 to 1; null: all. */
  reading(share) {
    this.rest = share === null ? "" : ` · reading: ${Math.floor(100 * share)} %`;
    this.showText();
  }

  /** These windows have been read; `all`: how many, with those that are not drawn. */
  show(rows, all) {
    this.left = rows.length < all ? ` · ${count(rows.length)} of ${count(all)} windows are drawn: the notable ones` : "";
    this.windows = [-1, ...rows.map((row) => row.window)];
    this.range.max = String(this.last);
    for (const id of ["scrub", "scrub-play", "scrub-back", "scrub-on"]) $(id).disabled = this.last === 0;
  }

  get last() {
    return this.windows.length - 1;
  }

  /** What is on show now: a window, and its row when there is one. */
  at(window, row) {
    if (this.timer === 0) this.set(Math.max(0, this.windows.findLastIndex((one) => one <= window)));
    this.where = row === null ? "At the start" : `Window ${count(row.window)} of ${count(this.windows.at(-1))} · `
      + `step ${count(row.last)} · ${clock(row.time, now())} · ${row.plan}`;
    this.showText();
  }

  showText() {
    setText($("scrub-text"), `${this.where}${this.left}${this.rest}`);
    this.range.setAttribute("aria-valuetext", this.where);
  }

  set(place) {
    this.place = place;
    this.range.value = String(place);
  }

  move(place) {
    if (place === this.place) return;
    this.set(place);
    this.onMove(place === this.last ? null : this.windows[place]);
  }

  step(by) {
    this.stop();
    this.move(Math.max(0, Math.min(this.last, this.place + by)));
  }

  /** Play from here, or from the start when this is the end; or stop. */
  toggle() {
    if (this.timer !== 0) {
      this.stop();
      return;
    }
    if (this.last === 0) return;
    if (this.place === this.last) this.move(0);
    const began = performance.now(), from = this.place, rate = this.last / Math.min(LONGEST_MS, this.last * WINDOW_MS);
    setText($("scrub-play"), "Stop");
    this.timer = setInterval(() => {
      this.move(Math.min(this.last, from + Math.floor((performance.now() - began) * rate)));
      if (this.place === this.last) this.stop();
    }, FRAME_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    setText($("scrub-play"), "Play");
  }
}
