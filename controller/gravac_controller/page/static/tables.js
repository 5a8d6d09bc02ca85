// The candidates the policy knows, and the ranks of the last window.

import { $, bar, el, setText } from "./dom.js";
import { bytes, count, digits, known, plan, ratio, seconds } from "./format.js";
import { VERDICT, nameOf } from "./words.js";

const MOST_RANKS = 64;
const num = (text) => el("td", { class: "num" }, text);
const head = (names) => el("thead", {}, el("tr", {}, ...names.map(([name, numeric, title]) =>
  el("th", { scope: "col", class: numeric ? "num" : null, title: title ?? null }, name))));

/** Rebuild a table only when what it shows has changed. */
function fill(table, key, build) {
  if (table.dataset.key === key) return;
  table.dataset.key = key;
  table.replaceChildren(...build());
}

/** The plans as a decision (slim) knew them. */
export function showCandidates({ candidates, codec, cf, epsilon }) {
  fill($("candidates"), JSON.stringify([candidates, codec, cf, epsilon]), () => {
    const wanted = plan(codec, cf), byEfficiency = candidates.some((row) => known(row.efficiency));
    const best = Math.max(0, ...candidates.map((row) => row.useful_samples_per_second ?? 0));
    const body = candidates.map((row) => candidateRow(row, best, plan(row.codec, row.cf) === wanted));
    if (!body.length) body.push(el("tr", {}, el("td", { colspan: 7, class: "muted" }, "This policy measures no candidates.")));
    return [
      head([["Plan"], ["Gain", true, `must be at least ε ${digits(epsilon)}`], ["η", true, "statistical efficiency, predicted"],
        ["T_sys", true, "samples per second"],
        byEfficiency ? ["Useful", true, "useful throughput in samples per second = T_sys × η"] : ["T_comp", true, "samples per second = T_sys × gain"],
        ["Verdict"], ["Window", true, "last window that measured it"]]),
      el("tbody", {}, ...body),
    ];
  });
}

function candidateRow(row, best, wanted) {
  const useful = row.useful_samples_per_second;
  const state = row.verdict === "chosen" ? "chosen" : wanted ? "trying" : row.verdict;
  return el("tr", { class: `verdict-${state}`, "aria-current": wanted ? "true" : null },
    el("th", { scope: "row" }, plan(row.codec, row.cf)), num(digits(row.gain)), num(ratio(row.efficiency)), num(digits(row.samples_per_second)),
    el("td", { class: "num with-bar" }, known(useful) && best > 0 ? bar(useful / best) : null, el("span", {}, digits(useful))),
    el("td", { class: "verdict" }, nameOf(VERDICT, wanted && row.verdict === "untried" ? "trying" : row.verdict)), num(row.window === null ? "–" : count(row.window)));
}

/** Mean seconds a rank spent on its own work in a step: all but the network, where ranks wait for each other. */
function ownSeconds({ phases, steps }) {
  return steps > 0 ? (phases.data_wait + phases.compute + phases.compress + phases.decompress) / steps : null;
}

export function showRanks(job) {
  const report = job.latest?.report ?? null;
  const key = report === null ? "none" : `${report.incarnation}/${report.window}`;
  fill($("ranks"), key, () => {
    const ranks = (report?.ranks ?? []).map((row) => ({ row, own: ownSeconds(row) }));
    const fastest = Math.min(...ranks.map(({ own }) => (own > 0 ? own : Infinity)));
    const speed = ({ own }) => (own > 0 ? fastest / own : null);
    ranks.sort((a, b) => (speed(a) ?? 2) - (speed(b) ?? 2) || a.row.rank - b.row.rank);
    const shown = ranks.slice(0, MOST_RANKS);
    setText($("ranks-note"), note(report, ranks.length - shown.length));
    return [
      head([["Rank", true], ["Relative speed", true, "fastest rank = 1, from time spent on its own work"], ["Step", true],
        ["Compute", true], ["Data wait", true], ["Compress", true], ["Network", true], ["Decompress", true],
        ["Non-finite", true, "steps skipped because a gradient was not finite"], ["Failed", true],
        ["Memory", true, "held by the error memory"]]),
      el("tbody", {}, ...shown.map((rank) => rankRow(rank.row, speed(rank)))),
    ];
  });
}

function note(report, hidden) {
  if (report === null) return "Available after the first window.";
  const order = `Window ${count(report.window)}, means per step, slowest rank first.`;
  return hidden > 0 ? `${order} ${count(hidden)} faster ranks are not shown.` : order;
}

function rankRow(row, speed) {
  const mean = (value) => num(row.steps > 0 ? seconds(value / row.steps) : "–");
  const { phases } = row;
  const fault = (value) => el("td", { class: value > 0 ? "num fault" : "num" }, count(value));
  return el("tr", {}, el("th", { scope: "row", class: "num" }, count(row.rank)),
    el("td", { class: "num with-bar" }, known(speed) ? bar(speed) : null, el("span", {}, digits(speed))),
    mean(row.step_seconds), mean(phases.compute), mean(phases.data_wait), mean(phases.compress),
    mean(phases.communicate), mean(phases.decompress), fault(row.nonfinite_steps), fault(row.failed_steps),
    num(bytes(row.memory_bytes)));
}
