// Sharing what the page shows: a link to this view, the trace, a CSV of the charts, a curl command.

import { jobPath } from "./api.js";
import { $, setText } from "./dom.js";
import { COLUMNS, PHASES } from "./rows.js";

/**
 * {job, axis: "step"|"time", range: [from, to] | null, window | null, at | null} of the address. `window` is the one
 * picked; `at` the one at which a trace is shown. -1 is the start.
 */
export function readRoute() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const from = Number(fields.get("from") ?? NaN), to = Number(fields.get("to") ?? NaN);
  const windowOf = (name) => {
    const window = Number(fields.get(name) ?? NaN);
    return Number.isInteger(window) && window >= -1 ? window : null;
  };
  return {
    job: fields.get("job"),
    axis: fields.get("x") === "time" ? "time" : "step",
    range: Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null,
    window: windowOf("window"),
    at: windowOf("at"),
  };
}

/** The part of an address after # that shows this view; "" for the plain page. */
export function hashOf({ job, axis, range, window = null, at = null }) {
  const fields = new URLSearchParams();
  if (job) fields.set("job", job);
  if (axis === "time") fields.set("x", axis);
  if (range) {
    fields.set("from", String(Math.round(range[0] * 100) / 100));
    fields.set("to", String(Math.round(range[1] * 100) / 100));
  }
  if (window !== null) fields.set("window", String(window));
  if (at !== null) fields.set("at", String(at));
  return fields.size ? `#${fields}` : "";
}

/** Put the view into the address without adding to the browser's history. */
export function writeRoute(view) {
  const hash = hashOf(view);
  if (hash !== location.hash) history.replaceState(null, "", `${location.pathname}${hash}`);
}

/** A field of a CSV: settings of a codec may have commas. */
const quoted = (value) => (/[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : value);

/** The windows the charts show, one line each; phases in seconds per step. */
function csv(state, { axis, range }) {
  const x = state.columns[axis];
  const rows = state.rows.filter((row, at) => range === null || (x[at] >= range[0] && x[at] <= range[1]));
  const head = [...COLUMNS.map(([name]) => name), ...PHASES.map((name) => `${name}_seconds`)];
  const lines = rows.map((row) => [...COLUMNS.map(([, field]) => quoted(row[field] ?? "")), ...row.phases].join(","));
  return [head.join(","), ...lines, ""].join("\r\n");
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    setText($("copied"), `${what} copied.`);
  } catch {
    setText($("copied"), `The browser does not allow copying here. The text: ${text}`);
  }
  setTimeout(() => setText($("copied"), ""), 4000);
}

export class Share {
  /** view(): {state, axis, range, window} as shown now. */
  constructor(view) {
    this.job = null;
    this.view = view;
    $("csv").addEventListener("click", () => save(`${this.job}.csv`, csv(view().state, view())));
    $("copy-curl").addEventListener("click", () => copy($("curl").textContent, "Command"));
    $("copy-link").addEventListener("click", () => this.copyLink());
  }

  copyLink() {
    copy(`${location.href.split("#")[0]}${hashOf({ ...this.view(), job: this.job })}`, "Link");
  }

  show(job) {
    this.job = job;
    const path = jobPath(job, "/trace");
    $("trace").href = path;
    $("trace").download = `${job}.jsonl`;
    setText($("curl"), `curl -sS '${location.origin}${path}' -o '${job}.jsonl' && gravac replay '${job}.jsonl' --check`);
  }
}
