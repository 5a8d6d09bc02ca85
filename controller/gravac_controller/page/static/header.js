// The top of the page: which job, how it is, how old the numbers are.

import { now } from "./api.js";
import { $, Facts, el, setHidden, setText } from "./dom.js";
import { bitrate, clock, count, duration, large } from "./format.js";

const facts = new Facts($("facts"));
let announced = "";

/** Chip, banner and greying. Runs every second, so that ages tick. */
export function showStatus(job, status, paused) {
  document.body.dataset.status = status.key;
  document.body.classList.toggle("grey", status.grey);
  document.body.classList.toggle("paused", paused !== null);
  setText($("chip-word"), status.word);
  const frozen = paused === null ? "" : `Paused at ${clock(paused)}: the numbers below are frozen. The job continues.`;
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
    setText($("link-badge"), `emulated link: ${bitrate(spec.link.bits_per_second)}${delay} at the start`);
    $("link-badge").title = "The network is slowed down on purpose: this is not the speed of the real one.";
  }
  const agents = report === null ? null : `${count(report.ranks.length)} of ${count(spec.world_size)}`;
  facts.set([
    ["step", "Step", report === null ? null : count(report.last_step)],
    ["window", "Window", report === null ? null : count(report.window), `${count(spec.window_steps)} steps`],
    ["world", "World size", count(spec.world_size), spec.hosts ? `${spec.hosts.hosts} hosts of ${spec.hosts.ranks} ranks` : ""],
    ["agents", "Agents reporting", agents],
    ["policy", "Policy", spec.policy.name],
    ["codec", "Codec", job.cf === 1 ? "none" : job.codec, `memory: ${spec.memory}`],
    ["model", "Model", spec.model.name, `${large(spec.model.elements)} elements`],
    ["device", "Device", spec.environment.device, spec.environment.backend],
    ["started", "Started", clock(job.started_time, now())],
  ]);
}
