// The state of a job in a word, and what a person can do about it.

import { now } from "./api.js";
import { $, setHidden, setText } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { speedOf } from "./speed.js";

const over = (job) => job.state === "ended" || job.state === "interrupted";

/** State and advice: what changes with the clock, too. `status`: as `status.js` says it. */
export function showState(job, status) {
  setText($("state-word"), job === null || status.key !== "replay" ? status.word : job.state === "running" ? "running then" : job.state);
  if (job === null) return;
  const report = job.latest?.report ?? null, age = now() - (job.last_report_time ?? job.started_time);
  const step = report === null ? "no window yet" : `step ${count(report.last_step)}, ${ranksOf(job, report)}`;
  setText($("state-note"), status.key === "replay" || over(job) ? `${step}; last report ${clock(job.last_report_time, now())}` : `${step}; last report ${duration(age)} ago`);
  const [text, command, note] = adviceOf(job, status);
  setHidden($("advice-box"), text === "");
  setText($("advice"), text);
  setHidden($("advice-command"), command === "");
  setText($("advice-command"), command);
  setText($("advice-note"), note);
}

const STEERING_OFF = "Orders are off here. GRAVAC_STEERING=owner in the trainer's environment, or gravac serve --owner-may-steer, allows them.";

function ranksOf({ world_size: all }, { ranks }) {
  return ranks.length === all ? `${count(all)} ${all === 1 ? "rank" : "ranks"}` : `${count(ranks.length)} of ${count(all)} ranks report`;
}

/** What a person can do about the state of the job: [sentence, command, note]. */
function adviceOf(job, { key }) {
  if (key === "replay") return ["", "", ""];
  if (key === "lost") return ["Training does not need the controller. Look whether its process still runs, and at controller.log in the data folder.", "", ""];
  if (key === "ended") return ["Nothing: the training is over. Read the figures below, or download the trace.", "", ""];
  if (key === "stale") return ["Look at the trainer: the process and the log of rank 0. It hangs, was killed, or does not reach this controller.", "", ""];
  const order = (sentence, action) => [sentence, job.control_enabled ? `gravac steer ${job.job} ${action}` : "", job.control_enabled ? "" : STEERING_OFF];
  if (job.override !== null) return order("The policy does not decide while this order is in force. To give control back:", "resume");
  if (job.phase === "fallback") return ["Nothing: the ranks go on by themselves once the controller has answered again.", "", ""];
  if (job.latest?.report.nonfinite_steps > 0) return ["Look at the loss and the learning rate: a gradient was not finite. Those steps were left out.", "", ""];
  const level = job.risk?.level;
  if (level === "raised" || level === "high") return order("If the loss matters more than time, send everything until you know more:", "dense");
  const { faster } = speedOf(job);
  if (faster !== null && faster < 0.95 && job.phase === "hold") return order("It is slower than dense training was. To send everything:", "dense");
  return ["Nothing needs to be done.", "", ""];
}
