// What compression saved: bytes (exact) and time (an estimate).

import { $, bar, el } from "./dom.js";
import { NONE, bytes, count, duration, known, percent, seconds, times } from "./format.js";

const box = $("saved");

export function showSaved(state) {
  const { totals, baseline_step_seconds: base, predicted_dense_step_seconds: predicted } = state.job;
  if (totals.windows === 0) {
    box.replaceChildren(el("p", { class: "muted" }, "No data before the first window."));
    return;
  }
  const before = state.job.latest.report.window - totals.windows;  // windows up to here are of earlier starts
  const rows = state.rows.filter((row) => row.window > before);
  box.replaceChildren(...bytesPart(totals), ...(timePart(totals, base, denseSteps(rows)) ?? nowPart(state.job.latest.usual_step_seconds, predicted)), ...headroomPart(headroomOf(rows), state.job));
}

function bytesPart({ dense_bytes: dense, payload_bytes: payload }) {
  const saved = dense - payload;
  return [
    el("p", { class: "big-line" }, el("strong", {}, bytes(saved)), " ", el("span", { class: "muted" }, "not sent (exact)")),
    compare("if dense", dense, 1), compare("sent", payload, dense > 0 ? payload / dense : 0),
    el("p", { class: "muted small" }, payload > 0
      ? `Whole run, all ranks, including indices and headers: ${times(dense / payload)} on the wire.`
      : "Whole run, all ranks."),
  ];
}

const compare = (label, value, share) => el("p", { class: "compare" },
  el("span", {}, label), bar(share), el("span", { class: "num" }, bytes(value)));

/** Of the whole run, where dense steps were measured on its network; else null. */
function timePart({ steps, seconds: whole, paused_seconds: paused }, base, measured) {
  if (!known(base)) return null;
  const spent = whole - paused;  // a dense step is known without pauses, too
  const saved = base * steps - spent;
  return [
    el("p", { class: saved < 0 ? "big-line loss" : "big-line" }, el("strong", {}, `≈ ${signed(saved)}`), " ",
      el("span", { class: "muted" }, saved < 0 ? "lost, not saved (estimate)" : "saved (estimate)")),
    el("p", { class: "muted small" }, `${count(steps)} steps at the dense ${seconds(base)} (measured) would take `
      + `${duration(base * steps)}; they took ${duration(spent)}, including exploration${paused >= 1 ? `, without ${duration(paused)} of pauses` : ""}.${spread(measured, steps, spent)}`),
  ];
}

/** Of a step of the last window: what earlier ones saved on other networks is not known. */
function nowPart(step, predicted) {
  if (!known(predicted)) {
    return [
      el("p", { class: "big-line" }, el("strong", {}, NONE), " ", el("span", { class: "muted" }, "time saved: unknown")),
      el("p", { class: "muted small" }, "An estimate needs the dense step time, which the warm-up measures."),
    ];
  }
  const saved = predicted - step;
  return [
    el("p", { class: saved < 0 ? "big-line loss" : "big-line" }, el("strong", {}, `≈ ${seconds(Math.abs(saved))}`), " ",
      el("span", { class: "muted" }, saved < 0 ? "lost a step now (estimate)" : "saved a step now (estimate)")),
    el("p", { class: "muted small" }, `A step of the last window took ${seconds(step)}; a dense one is predicted to take `
      + `${seconds(predicted)}. Dense steps were not measured on the network of today, so the whole run has no estimate.`),
  ];
}

const signed = (value) => (value < 0 ? `−${duration(-value)}` : duration(value));

/** How far the estimate moves when another window of the warm-up is taken for the baseline. */
function spread(measured, steps, spent) {
  if (measured.length < 2) return " Only one window measured the dense step, so the uncertainty is unknown.";
  const ends = [Math.min(...measured), Math.max(...measured)].map((base) => signed(base * steps - spent));
  return ` Range from the slowest and the fastest of ${count(measured.length)} dense windows: ${ends[0]} to ${ends[1]}.`;
}

/** The dense step in seconds as each window of the warm-up measured it. */
const denseSteps = (rows) => rows.map((row) => row.denseStep).filter((step) => step > 0);

/** Dense step and the part of it that waited for the network, from the warm-up; null when not measured. */
function headroomOf(rows) {
  const row = rows.findLast((one) => one.denseStep > 0 && one.denseExposed !== null);
  return row === undefined ? null : { step: row.denseStep, exposed: row.denseExposed };
}

/** What compression can gain at best here, from the share of the dense step that waited for the network. */
function headroomPart(headroom, job) {
  if (headroom === null || !known(job.latest?.usual_step_seconds)) return [];
  const rest = headroom.step - headroom.exposed;
  const share = percent(headroom.exposed / headroom.step);
  if (rest <= 0) return [];
  const now = headroom.step / job.latest.usual_step_seconds;
  return [el("p", { class: "muted small" }, `Headroom: a dense step spends ${share} of its time waiting for the network, so `
    + `${times(headroom.step / rest)} as fast is the limit. Last window: ${times(now)}, ${reached(headroom, job.latest.usual_step_seconds)}.`)];
}

/** The share of what there is to gain, in time per step. */
function reached({ step, exposed }, took) {
  const share = (step - took) / exposed;
  return share < 0 ? "slower than dense" : `${percent(Math.min(1, share))} of that wait is saved`;
}
