// Wiring: what feeds the page (a running job, a trace, a report), the screen, and what works everywhere.

import { $ } from "./dom.js";
import { pageKeys, showKeys } from "./keys.js";
import { Live } from "./live.js";
import { Replay } from "./replay.js";
import { Report } from "./report.js";
import { Screen } from "./screen.js";
import { Share, readRoute, writeRoute } from "./share.js";
import { State } from "./state.js";
import { Theme } from "./theme.js";

const state = new State();
const screen = new Screen(state, { onView: () => feed && writeRoute(view()), onCopy: () => share.copyLink() });
const { charts } = screen;
const view = () => ({ state, axis: charts.axis, range: charts.range, window: screen.picked, ...feed.route });
const share = new Share(view);
const theme = new Theme($("theme"), () => {
  screen.rebuild();
  feed?.rebuild?.();
});
let feed = null;
const feeds = { live: Live, replay: Replay, report: Report };
feed = new feeds[document.body.dataset.mode](state, screen, share);

function go() {
  const route = readRoute();
  feed.go(route);
  screen.set(route);
}

$("zoom-reset").addEventListener("click", () => charts.zoom(null));
for (const axis of ["step", "time"]) $(`axis-${axis}`).addEventListener("click", () => charts.setAxis(axis));
$("job-select").addEventListener("change", (event) => {
  location.hash = new URLSearchParams({ job: event.target.value }).toString();
});
addEventListener("hashchange", go);
$("show-keys").addEventListener("click", showKeys);
pageKeys({
  p: () => feed.toggle(), t: () => theme.next(), x: () => charts.setAxis(charts.axis === "step" ? "time" : "step"),
  "[": () => screen.pickChange(-1), "]": () => screen.pickChange(1), Escape: () => screen.pick(null), "?": showKeys,
  ",": () => feed.step?.(-1), ".": () => feed.step?.(1),
});
setInterval(() => feed.tick(), 1000);
go();
feed.start();
