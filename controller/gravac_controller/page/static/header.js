// The top of the page: which job, how it is, how old the numbers are.

import { $, Facts, el, setHidden, setText } from "./dom.js";
import { bitrate, cf, clock, count, duration, large } from "./format.js";
import { now } from "./api.js";
import { PHASE, say } from "./words.js";

const facts = new Facts($("facts"));
let announced = "";

/** Chip, banner and greying. Runs every second, so that ages tick. */
export function showStatus(job, status, paused) {
  document.body.dataset.status = status.key;
  document.body.classList.toggle("grey", status.grey);
  document.body.classList.toggle("paused", paused !== null);
  setText($("chip-word"), status.word);
  const frozen = paused === null ? "" : `Paused: everything below is frozen as of ${clock(paused)}. The job goes on.`;
  const text = [frozen, status.text].filter(Boolean).join(" ");
  setHidden($("banner"), text === "");
  setText($("banner"), text);
  const reported = document.body.dataset.mode !== "live" ? null : job?.last_report_time ?? null;
  setText($("age"), reported === null ? "" : `last report ${duration(now() - reported)} ago`);
  // Spoken once when it changes: the banner itself ticks every second.
  const words = paused !== null ? "Paused" : `Job ${job?.job ?? ""}: ${status.word}`;
  if (words !== announced) setText($("announce"), announced = words);
}

/** What does not tick. */
export function showHeader(job) {
  setText($("job-name"), job.job);
  const report = job.latest?.report ?? null, spec = job.spec;
  setHidden($("link-badge"), spec.link === null);
  if (spec.link !== null) {
    const delay = spec.link.latency_seconds > 0 ? `, ${Number((spec.link.latency_seconds * 1e3).toPrecision(3))} ms` : "";
    setText($("link-badge"), `emulated link ${bitrate(spec.link.bits_per_second)}${delay}`);
    $("link-badge").title = "The network is slowed down on purpose; it is not the real one.";
  }
  const agents = report === null ? null : `${count(report.ranks.length)} of ${count(spec.world_size)}`;
  facts.set([
    ["step", "Step", report === null ? null : count(report.last_step)],
    ["window", "Window", report === null ? null : count(report.window), `${count(spec.window_steps)} steps`],
    ["world", "World size", count(spec.world_size)],
    ["agents", "Agents reporting", agents],
    ["policy", "Policy", spec.policy.name],
    ["compressor", "Compressor", spec.compressor, `memory: ${spec.memory}`],
    ["model", "Model", spec.model.name, `${large(spec.model.elements)} elements`],
    ["device", "Device", spec.environment.device, spec.environment.backend],
    ["started", "Started", clock(job.started_time, now())],
  ]);
}

/** The job list: hidden while there is one job, and the address names it or nothing. */
export function showJobs(jobs, unreadable, current, missing) {
  const pick = $("job-pick"), select = $("job-select");
  setHidden(pick, jobs.length + unreadable.length < 2 && missing === null);
  $("job-name").classList.toggle("sr", !pick.hidden);  // the list names it, too
  const entries = jobs.map((job) => [job.job, `${job.job} · ${job.state} · ${say(PHASE, job.phase).toLowerCase()} · ${cf(job.cf)}`, false]);
  for (const { job } of unreadable) entries.push([job, `${job} · journal cannot be read`, true]);
  if (missing !== null) entries.unshift([missing, `${missing} · not on this controller`, true]);
  const key = JSON.stringify(entries);
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...entries.map(([value, text, disabled]) => el("option", { value, disabled }, text)));
  }
  const wanted = missing ?? current ?? "";
  if (select.value !== wanted) select.value = wanted;
}
