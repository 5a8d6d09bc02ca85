// The candidates the policy knows, and the ranks of the last window.

import { $, bar, el, setHidden, setText } from "./dom.js";
import { bytes, count, digits, known, percent, ratio, registered, seconds, times } from "./format.js";
import { VERDICT, nameOf } from "./words.js";

const MOST_RANKS = 64;
const num = (text) => el("td", { class: "num" }, text);
const head = (names) => el("thead", {}, el("tr", {}, ...names.map(([name, numeric, title, more]) =>
  el("th", { scope: "col", class: numeric ? `num ${more ?? ""}` : null, title: title ?? null }, name))));

/** Rebuild a table only when what it shows has changed. */
function fill(table, key, build) {
  if (table.dataset.key === key) return;
  table.dataset.key = key;
  table.replaceChildren(...build());
}

const ACCEPTED = 0.02, ROUNDING = 1e-3;  // as gravac.signals.risk and .efficiency have them
const NEXT = 3;  // plans that were not tried, by prediction
const WHAT = {
  gravac: "Policy gravac chooses the highest T_comp = T_sys × gain (T_sys: samples per second) of the factors with enough gain.",
  auto: "Useful: T_sys × η, samples per second that count as those of dense training. Policy auto chooses the plan with the most that keeps its bound. ≈: predicted.",
};
let showAll = false, redraw = null;
$("candidates-all").addEventListener("click", () => {
  showAll = !showAll;
  redraw();
});

/** The plans as a decision (slim) knew them: in force, measured, the next by prediction; the rest on demand. */
export function showCandidates({ candidates, plan, epsilon, rule }, job) {
  redraw = () => showCandidates({ candidates, plan, epsilon, rule }, job);
  const { policy, spec, latest } = job;
  const paper = policy === "gravac", ordered = rule === "pinned", accepted = spec.policy.settings.bound ?? ACCEPTED;
  const rows = candidates.map((row) => ({ ...row, ...usefulOf(row), fewer: latest?.plan === row.plan ? latest.wire_cf : registered(spec, row.codec, row.cf), wanted: row.plan === plan, shown: row.plan === plan || row.window !== null,
    loses: !paper && row.plan !== plan && tooMuch(row, accepted) }));
  const next = rows.filter((row) => !row.shown && row.verdict === "untried" && known(row.useful)).sort((a, b) => b.useful - a.useful).slice(0, NEXT);
  const few = rows.filter((row) => paper || row.shown || next.includes(row));
  const more = rows.length - few.length;
  setHidden($("exploration"), rows.length === 0);
  setHidden($("candidates-all"), more === 0);
  $("candidates-all").setAttribute("aria-pressed", String(showAll));
  setText($("candidates-all"), showAll ? "Show fewer plans" : `Show ${count(more)} more plans`);
  setText($("candidates-note"), WHAT[policy] ?? "");
  const shown = paper ? rows : [...(showAll ? rows : few)].sort((a, b) => b.wanted - a.wanted || a.loses - b.loses || (b.useful ?? -1) - (a.useful ?? -1));
  fill($("candidates"), JSON.stringify([shown, plan, epsilon, paper, ordered]), () => {
    const best = Math.max(0, ...rows.map((row) => row.useful ?? 0)), force = rows.find((row) => row.wanted)?.useful ?? null;
    const columns = paper ? [["Gain", true, `must be at least ε ${digits(epsilon)}`], ["T_sys", true, "samples per second"], ["T_comp", true, "T_sys × gain"]]
      : [["Useful", true, "samples per second × η"], ["Against now", true, "useful throughput against the plan in force"], ["η", true, "statistical efficiency, expected", "spare"]];
    return [
      head([["Plan"], ...(paper ? [] : [["Fewer bytes", true, "than dense: as sent, else as expected", "spare"]]), ...columns, ["Verdict"], ["Window", true, "last window that measured it"]]),
      el("tbody", {}, ...shown.map((row) => candidateRow(row, best, force, paper, ordered))),
    ];
  });
}

/** Whether a plan loses more than is accepted, so that it is not taken. */
const tooMuch = ({ verdict, efficiency }, accepted) => known(efficiency) && (verdict === "too_strong" || 1 - efficiency > accepted + ROUNDING);
const why = ({ window, efficiency }) => `${window === null ? "is expected to lose" : "loses"} ${percent(1 - efficiency)} of progress: too much`;

/** What a policy maximizes: as predicted now, else as measured. */
function usefulOf({ useful_samples_per_second: measured, predicted_samples_per_second: predicted, efficiency }) {
  if (!known(predicted)) return { useful: measured, guessed: false };
  return { useful: known(efficiency) ? predicted * efficiency : null, guessed: true };
}

function candidateRow(row, best, force, paper, ordered) {
  const { useful, wanted } = row, trying = wanted && row.verdict === "untried";
  const verdict = !ordered ? (trying ? "trying" : row.verdict) : wanted ? "pinned" : row.verdict === "chosen" ? "suspended" : row.verdict;
  const state = ["chosen", "pinned"].includes(verdict) ? "chosen" : wanted ? "trying" : verdict;
  const measure = el("td", { class: "num with-bar" }, known(useful) && best > 0 ? bar(useful / best) : null,
    el("span", { class: "value" }, `${row.guessed ? "≈ " : ""}${digits(useful)}`));
  const figures = paper ? [num(digits(row.gain)), num(digits(row.samples_per_second)), measure]
    : [el("td", { class: "num spare" }, times(row.fewer)), measure, num(wanted || !known(useful) || !(force > 0) ? "" : than(useful / force - 1)), el("td", { class: "num spare" }, ratio(row.efficiency))];
  return el("tr", { class: `verdict-${state}`, "aria-current": wanted ? "true" : null },
    el("th", { scope: "row", title: row.codec }, row.plan), ...figures,
    el("td", { class: "verdict" }, row.loses ? why(row) : nameOf(VERDICT, verdict)), num(row.window === null ? "–" : count(row.window)));
}

const than = (share) => `${percent(Math.abs(share))} ${share < 0 ? "less" : "more"}`;

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
      head([["Rank", true], ["Speed (fastest rank: 1)", true, "from the time that a rank spends on its own work"], ["Step", true],
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
    el("td", { class: "num with-bar" }, known(speed) ? bar(speed) : null, el("span", { class: "value" }, digits(speed))),
    mean(row.step_seconds), mean(phases.compute), mean(phases.data_wait), mean(phases.compress),
    mean(phases.communicate), mean(phases.decompress), fault(row.nonfinite_steps), fault(row.failed_steps),
    num(bytes(row.memory_bytes)));
}
