// Wiring: the job list and the event stream feed the state; the state is drawn at most twice a second.

import { $ } from "./dom.js";
import { readHistory } from "./history.js";
import { pageKeys, showKeys } from "./keys.js";
import { Link, chooseJob } from "./link.js";
import { readRoute, writeRoute } from "./route.js";
import { Screen, showClock, showLists } from "./screen.js";
import { State } from "./state.js";
import { statusOf } from "./status.js";
import { Stream } from "./stream.js";
import { Take } from "./take.js";
import { Theme } from "./theme.js";

const DRAW_EVERY_MS = 500;
const state = new State();
let current = null;  // name of the job on show
let wanted = readRoute().job;  // what the address asks for; null: any
let missing = null;
let jobs = [], unreadable = [];
let streamLost = null;  // seconds, this machine's clock
let paused = null;  // since when, seconds
let live = null;  // the job as last heard of; the same as state.job unless paused
let drawTimer = 0, drawnAt = -Infinity;

const view = () => ({ state, axis: charts.axis, range: charts.range, window: screen.picked });
const screen = new Screen(state, {
  onView: () => writeRoute({ ...view(), job: wanted }),
  onCopy: () => take.copyLink(),
});
const { charts } = screen;
const take = new Take(view);
const theme = new Theme($("theme"), () => screen.rebuild());
const stream = new Stream(onMessage, onStream);
const link = new Link(onJobs, () => {
  if (link.up) stream.retry();
  else stream.drop();  // it may look open and be dead: after a sleep, or through a broken tunnel
  tick();
});

function onMessage(kind, data) {
  streamLost = null;
  if (data.job) live = data.job;
  if (paused !== null) return;  // read anew on resuming
  if (kind === "snapshot") {
    state.snapshot(data);
    const first = state.rows[0]?.window ?? 0, job = current;
    if (first > 0) readHistory(state, data.job.spec, first, () => current === job).then(later, () => {});
  } else if (kind === "window") state.window(data);
  else if (data.job) state.setJob(data.job);
  later();
}

function onStream() {
  if (stream.up) streamLost = null;
  else streamLost ??= Date.now() / 1000;
  tick();
  if (!stream.up) link.poll();
}

function onJobs(found, broken) {
  [jobs, unreadable] = [found, broken];
  const job = chooseJob(jobs, wanted);
  missing = job === null && wanted !== null ? wanted : null;
  // A job once shown stays: another one that starts is offered in the list, not forced on the reader.
  if (current === null || wanted !== null || !jobs.some((one) => one.job === current)) show(job);
  tick();
}

function show(job) {
  if (job === current) return;
  current = job;
  streamLost = live = null;
  state.clear();
  screen.clear();
  stream.close();
  if (job === null) return;
  stream.open(job);
  take.show(job);
}

/** Draw soon, but not more often than twice a second, and not while the tab is hidden or the page is paused. */
function later() {
  if (drawTimer || paused !== null || document.hidden) return;
  drawTimer = setTimeout(draw, Math.max(0, drawnAt + DRAW_EVERY_MS - performance.now()));
}

function draw() {
  drawTimer = 0;
  drawnAt = performance.now();
  tick();
  if (state.job !== null && paused === null) screen.draw(unreadable);
}

/** What changes with the clock alone: status, ages, banner, title. */
function tick() {
  const losses = [link.lostSince, streamLost].filter((since) => since !== null);
  const lostSince = losses.length ? Math.min(...losses) : null;
  const retryAt = stream.retryAt === null ? null : stream.retryAt / 1000;
  showClock(live, statusOf(live, { up: link.up, opening: current !== null, lostSince, retryAt, missing }), paused);
  showLists(state.job !== null, { jobs, unreadable, current, missing });
}

function togglePause() {
  paused = paused === null ? Date.now() / 1000 : null;
  $("pause").setAttribute("aria-pressed", String(paused !== null));
  $("pause").textContent = paused === null ? "Pause" : "Resume";
  if (paused === null) stream.reopen();
  tick();
}

function go() {
  const route = readRoute();
  wanted = route.job;
  screen.set(route);
  if (link.up !== null) onJobs(jobs, unreadable);
  later();
}

$("pause").addEventListener("click", togglePause);
$("zoom-reset").addEventListener("click", () => charts.zoom(null));
for (const axis of ["step", "time"]) $(`axis-${axis}`).addEventListener("click", () => charts.setAxis(axis));
$("job-select").addEventListener("change", (event) => {
  location.hash = new URLSearchParams({ job: event.target.value }).toString();
});
addEventListener("hashchange", go);
document.addEventListener("visibilitychange", later);
$("show-keys").addEventListener("click", showKeys);
pageKeys({
  p: togglePause, t: () => theme.next(), x: () => charts.setAxis(charts.axis === "step" ? "time" : "step"),
  "[": () => screen.turn(-1), "]": () => screen.turn(1), Escape: () => screen.pick(null), "?": showKeys,
});
setInterval(tick, 1000);
screen.set(readRoute());
link.start();
