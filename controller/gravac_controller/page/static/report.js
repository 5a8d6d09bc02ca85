// A report: the same page as one file that contains its traces. There is no server.

import { Comparison } from "./compare.js";
import { $, el, setHidden, setText } from "./dom.js";
import { rowsOf, viewsOf } from "./rows.js";
import { showClock, showLists } from "./screen.js";

const STATUS = { key: "replay", word: "report", text: "", grey: false };

export class Report {
  constructor(state, screen, share) {
    Object.assign(this, { state, screen, share });
    const { jobs, made_by: by } = JSON.parse($("report-data").textContent);
    this.jobs = jobs.map((one) => ({ ...one, rows: rowsOf(one), views: viewsOf(one) }));
    this.shown = this.wanted = null;  // the job on show; the label that the address asks for
    screen.heat.load = async () => this.shown.heat;
    screen.heat.seen = true;  // it is here already, and a printed page is not scrolled
    for (const node of document.querySelectorAll(".served")) node.remove();
    for (const [id, hidden] of [["pause", true], ["report", false]]) setHidden($(id), hidden);
    setText($("made-by"), `Report made by ${by}.`);
    this.comparison = jobs.length > 1 ? new Comparison(this.jobs) : null;
  }

  start() {
    this.comparison?.draw();  // its charts need the width that they have once the page shows
  }

  get route() {
    return { job: this.wanted };
  }

  /** Show the requested job, else the first. */
  go({ job }) {
    this.wanted = job;
    const found = this.jobs.find((one) => one.label === job) ?? this.jobs[0];
    if (found === this.shown) return;
    if (this.shown !== null) this.screen.clear();
    this.shown = found;
    this.share.job = found.label;
    showNotes(found, this.jobs.length);
    this.tick();
    this.state.replay(found.rows, found.views, found.job);
    this.screen.draw([]);
  }

  tick() {
    showClock(this.shown.job, STATUS, null);
    showLists(true, { jobs: this.jobs.map((one) => one.job), unreadable: [], current: this.shown.label, missing: null });
  }

  /** Nothing plays in a report. */
  toggle() {}

  /** Redraw: the theme has changed. */
  rebuild() {
    this.comparison?.charts.rebuild();
  }
}

function showNotes({ path, job, notes }, jobs) {
  const about = `${jobs > 1 ? `${job.job}: the state` : "State"} at the end of the trace ${path}.`;
  $("report-notes").replaceChildren(...[about, ...notes].map((note) => el("li", {}, note)));
}
