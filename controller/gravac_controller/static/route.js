// What the address says after #: job, axis, zoom and the picked window, so that a link shows the same view.

/** {job, axis: "step"|"time", range: [from, to] | null, window (-1: the start) | null} of the address. */
export function readRoute() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const from = Number(fields.get("from") ?? NaN), to = Number(fields.get("to") ?? NaN);
  const window = Number(fields.get("window") ?? NaN);
  return {
    job: fields.get("job"),
    axis: fields.get("x") === "time" ? "time" : "step",
    range: Number.isFinite(from) && Number.isFinite(to) && from < to ? [from, to] : null,
    window: Number.isInteger(window) && window >= -1 ? window : null,
  };
}

/** The part of an address after # that shows this view; "" for the plain page. */
export function hashOf({ job, axis, range, window }) {
  const fields = new URLSearchParams();
  if (job) fields.set("job", job);
  if (axis === "time") fields.set("x", axis);
  if (range) {
    fields.set("from", String(Math.round(range[0] * 100) / 100));
    fields.set("to", String(Math.round(range[1] * 100) / 100));
  }
  if (window !== null) fields.set("window", String(window));
  return fields.size ? `#${fields}` : "";
}

/** Put the view into the address without adding to the browser's history. */
export function writeRoute(view) {
  const hash = hashOf(view);
  if (hash !== location.hash) history.replaceState(null, "", `${location.pathname}${hash}`);
}
