// The parts of the page, each shown from what is known, and the window that the reader picked.

import { showState } from "./advice.js";
import { Card, showReadout } from "./card.js";
import { Charts } from "./charts.js";
import { Curve, showCurve } from "./curve.js";
import { $, setHidden, setText } from "./dom.js";
import { showEvents, showFaults } from "./faults.js";
import { count } from "./format.js";
import { showHeader, showStatus } from "./header.js";
import { Heat } from "./heat.js";
import { showHero, showRisk, showTitle } from "./hero.js";
import { showJobs, showWaiting } from "./jobs.js";
import { DecisionLog } from "./log.js";
import { showSaved } from "./saved.js";
import { Steer } from "./steer.js";
import { showCandidates, showRanks } from "./tables.js";

export class Screen {
  /** onView(): axis, zoom or the picked window changed. onCopy(): the reader wants a link to this view. */
  constructor(state, { onView, onCopy }) {
    this.state = state;
    this.onView = onView;
    this.picked = null;  // a window, -1 for the start
    const pick = (window) => this.pick(window);
    this.charts = new Charts($("grid"), {
      onAt: (index) => state.job !== null && showReadout(state, index),
      onView: () => this.view(),
      onPick: pick,
    });
    this.card = new Card(pick, onCopy);
    this.charts.list[0].box.after(this.card.box);
    this.log = new DecisionLog((window) => {
      this.pick(window);
      $("charts").scrollIntoView({ block: "nearest" });
    });
    this.curve = new Curve($("curve"));
    this.heat = new Heat(pick);
    this.steer = new Steer();
    $("exploration-now").addEventListener("click", () => this.pick(null));
  }

  /** Axis and zoom as the buttons show them, and in the address. */
  view() {
    const { axis, range } = this.charts;
    setHidden($("zoom-reset"), range === null);
    for (const name of ["step", "time"]) $(`axis-${name}`).setAttribute("aria-pressed", String(axis === name));
    this.onView();
  }

  /** Apply the view of an address. */
  set({ axis, range, window }) {
    this.charts.range = null;  // it is in units of the new axis
    this.charts.setAxis(axis);
    this.charts.zoom(range);
    this.pick(window);
  }

  pick(window) {
    this.picked = window;
    this.log.pick(window);
    this.charts.pin.set(window !== null && window < 0 ? this.state.rows[0]?.window ?? null : window);
    if (this.state.job !== null) this.showPicked();
    this.onView();
  }

  /** The decision that changed something before or after the picked window. */
  pickChange(by) {
    const changes = this.state.log(false), here = this.picked ?? Infinity;
    const next = by < 0 ? changes.findLast(({ window }) => window < here) : changes.find(({ window }) => window > here);
    if (next !== undefined) this.pick(next.window);
  }

  clear() {
    this.log.clear();
    this.charts.drop();
  }

  rebuild() {
    this.charts.rebuild();
    this.curve.rebuild();
    this.heat.paint();
  }

  /** Everything that changes when the job does. */
  draw(unreadable) {
    const { state, charts } = this;
    showHeader(state.job);
    showHero(state);
    showSaved(state);
    showRisk(state.job);
    setHidden($("charts"), state.rows.length === 0);
    charts.show(state);
    showRanks(state.job);
    this.log.show(state);
    this.heat.show(state.job);
    this.steer.show(state.job, state.inForce);
    showFaults(state);
    showEvents(state.job, unreadable);
    showReadout(state, charts.pin.at < 0 ? null : charts.pin.at);
    this.showPicked();
  }

  /** What follows the picked window; the newest decision when none is picked, or it is not known. */
  showPicked() {
    const { state, picked } = this;
    this.card.show(state, picked);
    const then = picked === null ? null : state.decisionOn(picked);
    const decision = then ?? state.inForce;
    setHidden($("exploration-then"), then === null);
    setText($("exploration-when"), then === null ? "" : picked < 0 ? "At the start." : `After window ${count(picked)}.`);
    showCandidates(decision, state.job);
    showCurve(this.curve, decision, state.job, state.surveyed(then === null ? Infinity : state.indexOf(picked)));
  }
}

/** What changes with the clock alone: status, ages, banner, title. */
export function showClock(job, status, paused) {
  showStatus(job, status, paused);
  showState(job, status);
  showTitle(job, status);
}

/** The job list, and the page for the case that there is no job to show. */
export function showLists(shown, { jobs, unreadable, current, missing }) {
  showJobs(jobs, unreadable, current, missing);
  setHidden($("content"), !shown);
  const { status } = document.body.dataset;
  setHidden($("waiting"), shown || !(status === "waiting" || status === "missing"));
  if (!$("waiting").hidden) showWaiting(missing, jobs, unreadable);
}
