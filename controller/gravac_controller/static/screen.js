// The parts of the page, each shown from what is known.

import { $, setHidden } from "./dom.js";
import { showHeader, showJobs, showStatus } from "./header.js";
import { showHero, showTitle } from "./hero.js";
import { showEvents } from "./log.js";
import { showReadout } from "./readout.js";
import { showSaved } from "./saved.js";
import { showCandidates, showRanks } from "./tables.js";
import { showWaiting } from "./waiting.js";

/** Everything that changes when the job does. */
export function drawJob(state, charts, log, unreadable) {
  showHeader(state.job);
  showHero(state);
  showSaved(state);
  setHidden($("charts"), state.rows.length === 0);
  charts.show(state);
  showCandidates(state.job);
  showRanks(state.job);
  log.show(state);
  showEvents(state.job, unreadable);
  showReadout(state, charts.pinned === null ? null : state.indexOf(charts.pinned));
}

/** What changes with the clock alone: status, ages, banner, title. */
export function showClock(job, status, paused) {
  showStatus(job, status, paused);
  showTitle(job, status);
}

/** Which axis the charts have, and whether they show all of it. */
export function showView({ axis, range }) {
  setHidden($("zoom-reset"), range === null);
  for (const name of ["step", "time"]) $(`axis-${name}`).setAttribute("aria-pressed", String(axis === name));
}

/** The job list, and the page in place of a job while there is none to show. */
export function showLists(shown, { jobs, unreadable, current, missing }) {
  showJobs(jobs, unreadable, current, missing);
  setHidden($("content"), !shown);
  const { status } = document.body.dataset;
  setHidden($("waiting"), shown || !(status === "waiting" || status === "missing"));
  if (!$("waiting").hidden) showWaiting(missing, jobs, unreadable);
}
