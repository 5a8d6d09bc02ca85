// What the address says after #, so that a link shows the same view.

/**
 * {job, axis: "step"|"time", range: [from, to] | null, window | null, at | null} of the address. `window` is the one
 * picked; `at` the one as of which a trace is shown. -1 is the start.
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
