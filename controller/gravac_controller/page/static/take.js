// Taking it away: the trace, a CSV of what the charts show, a curl line, a link to this view.

import { $, setText } from "./dom.js";
import { jobPath } from "./api.js";
import { hashOf } from "./route.js";
import { COLUMNS, PHASES } from "./rows.js";


/** The windows the charts show, one line each; phases in seconds per step. */
function csv(state, { axis, range }) {
  const x = state.columns[axis];
  const rows = state.rows.filter((row, at) => range === null || (x[at] >= range[0] && x[at] <= range[1]));
  const head = [...COLUMNS.map(([name]) => name), ...PHASES.map((name) => `${name}_seconds`)];
  const lines = rows.map((row) => [...COLUMNS.map(([, field]) => row[field] ?? ""), ...row.phases].join(","));
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
    setText($("copied"), `The browser does not allow copying here; the text: ${text}`);
  }
  setTimeout(() => setText($("copied"), ""), 4000);
}

export class Take {
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
