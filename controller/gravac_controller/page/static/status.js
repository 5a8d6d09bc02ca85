// How current the page is: a key, a word and a sentence. Old numbers are never shown as current.

import { now } from "./api.js";
import { clock, count, duration } from "./format.js";

/**
 * {key, word, text, grey}. `link`: {up, opening, lostSince, retryAt, missing}; times in seconds, lostSince and
 * retryAt by this machine's clock. `grey`: the numbers are old and are shown in grey.
 */
export function statusOf(job, link) {
  if (link.lostSince !== null) return lost(job, link);
  if (link.missing !== null) {
    return { key: "missing", word: "no such job", grey: true, text: `This controller has no job named “${link.missing}”.` };
  }
  if (job === null) {
    return link.up === null || link.opening
      ? { key: "connecting", word: "connecting", text: "", grey: false }
      : { key: "waiting", word: "waiting", text: "", grey: false };
  }
  if (job.state === "ended") {
    return { key: "ended", word: "ended", grey: false, text: `The trainer closed its agent. These are the final numbers${at(job)}.` };
  }
  const quiet = now() - (job.last_report_time ?? job.started_time);
  if (quiet > job.stale_seconds) {
    const text = `No report for ${duration(quiet)}; ${below(job)}.`;
    return { key: "stale", word: "stale", text, grey: true };
  }
  return job.latest === null
    ? { key: "starting", word: "starting", text: "Registered. The first window has not been reported yet.", grey: false }
    : { key: "running", word: "running", text: "", grey: false };
}

/** The status of a page that shows a trace. Its numbers are never old; its server may be gone. */
export function replayStatus(job, lostSince, problem) {
  if (lostSince !== null) {
    const text = `\`gravac ui\` has not answered since ${clock(lostSince)}. Start it again to see other windows.`;
    return { key: "lost", word: "server gone", text, grey: false };
  }
  if (problem !== "") return { key: "replay", word: "replay", text: `The trace cannot be read to its end: ${problem}. The windows before that are shown.`, grey: false };
  return job === null ? { key: "connecting", word: "reading", text: "", grey: false } : { key: "replay", word: "replay", text: "", grey: false };
}

function lost(job, { lostSince, retryAt }) {
  const since = `Controller unreachable since ${clock(lostSince)} (${duration(Date.now() / 1000 - lostSince)}).`;
  const wait = retryAt === null ? 0 : retryAt - Date.now() / 1000;
  const again = wait < 1 ? "Retrying." : `Retrying in ${duration(wait)}.`;
  const trains = job?.state === "ended" ? "" : " Training continues without it.";
  const text = job === null ? `${since} ${again}` : `${since} ${again} ${capital(below(job))}.${trains}`;
  return { key: "lost", word: "connection lost", text, grey: true };
}

const below = (job) => (job.latest === null
  ? "nothing was reported yet"
  : `numbers below are from step ${count(job.latest.report.last_step)}, ${clock(job.last_report_time, now())}`);
const at = (job) => (job.latest === null ? "" : `, from step ${count(job.latest.report.last_step)}`);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
