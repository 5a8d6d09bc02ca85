// Which jobs there are: the one to show, the list to choose from, and the page while there is none to show.

import { $, el, setHidden, setText } from "./dom.js";
import { PHASE, nameOf } from "./words.js";

/** The job to show: the one asked for, else one that runs, else the one that reported last. */
export function chooseJob(jobs, wanted) {
  if (wanted !== null) return jobs.find((job) => job.job === wanted)?.job ?? null;
  const age = (job) => job.last_report_time ?? job.started_time;
  const rank = (job) => (job.state === "running" ? 1e12 : 0) + age(job);
  return [...jobs].sort((a, b) => rank(b) - rank(a))[0]?.job ?? null;
}

/** The job list: hidden while there is one job, and the address names it or nothing. */
export function showJobs(jobs, unreadable, current, missing) {
  const pick = $("job-pick"), select = $("job-select");
  setHidden(pick, jobs.length + unreadable.length < 2 && missing === null);
  $("job-name").classList.toggle("sr", !pick.hidden);  // the list names it, too
  const entries = jobs.map((job) => [job.job, `${job.job} · ${job.state} · ${nameOf(PHASE, job.phase).toLowerCase()} · ${job.plan}`, false]);
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

export function showWaiting(missing, jobs, unreadable) {
  setText($("waiting-title"), missing === null ? "Waiting for the first job" : `No job named “${missing}” here`);
  setText($("waiting-text"), missing === null
    ? "This controller is running and has no job yet. The page updates when a job starts. To start one:"
    : "The page shows it as soon as it starts. To start one:");
  setText($("waiting-code"), `from gravac import Agent

with Agent(ddp_model, optimizer, controller="${location.origin}") as agent:
    for x, y in loader:
        loss = criterion(ddp_model(x), y)
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        agent.log(loss=loss)`);
  const box = $("waiting-jobs"), key = JSON.stringify([jobs.map((job) => job.job), unreadable]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const links = jobs.map(({ job }) => el("li", {}, el("a", { href: `#${new URLSearchParams({ job })}` }, job)));
  const broken = unreadable.map(({ job, reason }) => el("li", { class: "fault" }, `The journal of “${job}” cannot be read: ${reason}`));
  box.replaceChildren(...(links.length ? [el("p", {}, "Jobs of this controller:"), el("ul", {}, ...links)] : []),
    ...(broken.length ? [el("ul", {}, ...broken)] : []));
}
