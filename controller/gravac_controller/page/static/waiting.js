// The page of a controller without a job, or without the one that was asked for.

import { $, el, setText } from "./dom.js";

export function showWaiting(missing, jobs, unreadable) {
  setText($("waiting-title"), missing === null ? "Waiting for the first job" : `No job named “${missing}” here`);
  setText($("waiting-text"), missing === null
    ? "This controller runs and has no job yet. The page will fill by itself. To start one:"
    : "The page will show it as soon as it starts. To start one:");
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
  box.replaceChildren(...(links.length ? [el("p", {}, "Jobs this controller has:"), el("ul", {}, ...links)] : []),
    ...(broken.length ? [el("ul", {}, ...broken)] : []));
}
