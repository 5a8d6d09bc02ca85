"""What ``gravac status --watch`` prints: a job as a terminal screen, a window as a line of text."""

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from gravac.signals import figures
from gravac.wording import plan_in_words, printable
from gravac_controller.cli.wording import (
    Listing,
    clock,
    dense_step,
    number,
    plan,
    seconds,
    sent_and_next,
    size,
    spread,
)
from gravac_controller.live.job_views import rank_views
from gravac_controller.views.models import PHASES, DecisionView, JobView, WindowView

BAR = 40
SLOWEST = 5
STATE_STYLE = {"running": "green", "stale": "yellow", "ended": "dim", "interrupted": "red"}
PHASE_STYLE = ("blue", "green", "magenta", "red", "cyan")


def screen(
    jobs: list[JobView], shown: JobView | None, decisions: list[DecisionView], note: str
) -> RenderableType:
    """Return a table of the jobs where there are several, and ``shown`` in detail. ``note``: an error, or empty."""
    parts: list[RenderableType] = []
    if note:
        parts.append(Text(printable(note), style="bold red"))
    if len(jobs) != 1:
        parts.append(listing(jobs))
    if shown is not None:
        parts.append(_job(shown, decisions))
    return Group(*parts)


def line(job: JobView, view: WindowView, after: DecisionView | None) -> str:
    """Return a window, and the reason of the decision on it where that changed something."""
    report = view.report
    loss = "" if report.loss is None else f"  loss {report.loss:.4g}"
    gain = f"  gain {number(view.gain)}" if job.decision.epsilon else ""
    waits = ", ".join(
        f"{seconds(used.seconds)} {level} hosts" for level, used in figures.links(report).items()
    )
    text = (
        f"{clock(view.time)}  {job.job}  step {report.last_step + 1}  {plan_in_words(view.codec, report.cf)} "
        f"({report.phase})  {number(view.wire_cf)}x fewer bytes  {seconds(view.usual_step_seconds)}/step  "
        f"η {_efficiency(view)}  useful {number(view.useful_samples_per_second)}/s{gain}  "
        f"backlog {number(view.backlog)}{loss}{'  waits ' * bool(waits)}{waits}"
    )
    if after is not None and after.changed:
        text += f"\n{clock(after.time)}  {job.job}  epoch {after.decision.epoch}: {printable(after.decision.reason)}"
    return text


def _efficiency(view: WindowView) -> str:
    """Statistical efficiency with its range."""
    return spread(view.efficiency, view.efficiency_low, view.efficiency_high)


def listing(jobs: list[JobView]) -> Listing:
    """Return a table with a line for each job: its plan, and figures of its last window."""
    table = Listing(
        ("Job", "State", "Plan", "Phase"),
        ("Fewer bytes", "η", "Useful/s", "Step", "Ranks"),
        leaving=("Phase", "Ranks", "η", "Useful/s", "Step"),
    )
    for job in jobs:
        view = job.latest
        table.add_row(
            job.job,
            Text(job.state, style=STATE_STYLE[job.state]),
            sent_and_next(job),
            job.phase,
            "–" if view is None or view.wire_cf is None else f"{number(view.wire_cf)}x",
            number(None if view is None else view.efficiency),
            number(None if view is None else view.useful_samples_per_second),
            str(job.totals.steps),
            str(job.world_size),
        )
    return table


def _job(job: JobView, decisions: list[DecisionView]) -> RenderableType:
    title = Text.assemble(
        (job.job, "bold"),
        "  ",
        (job.state, STATE_STYLE[job.state]),
        f"  step {job.totals.steps}  {job.world_size} ranks  policy {job.policy}",
    )
    order = job.override_waiting or job.override
    by = (
        ""
        if order is None
        else f"\norder of {order.actor}: {order.action}{f' {order.cf:g}' if order.cf else ''}"
    )
    why = Text.assemble(
        (sent_and_next(job), "bold cyan"),
        f"  {job.phase}, epoch {job.epoch}\n",
        printable(job.decision.reason),
        (by, "yellow"),
    )
    parts: list[RenderableType] = [why, ""]
    if job.latest is not None:
        parts += [_figures(job, job.latest), "", _phases(job.latest), ""]
        if len(job.latest.report.ranks) > 1:
            parts += [_ranks(job.latest), ""]
    parts.append(_decisions(decisions, job.spec.compressor))
    return Panel(Group(*parts), title=title, title_align="left", box=box.ROUNDED)


def _figures(job: JobView, latest: WindowView) -> Columns:
    totals, report = job.totals, latest.report
    dense = dense_step(job.spec, job.baseline_step_seconds, job.predicted_dense_step_seconds)
    pairs = {
        "step": f"{seconds(latest.usual_step_seconds)} ({dense})",
        "samples/s": number(latest.samples_per_second),
        "η": _efficiency(latest),
        "useful/s": number(latest.useful_samples_per_second),
        "gain": f"{number(latest.gain)} (ε {number(job.decision.epsilon)})",
        "backlog": number(latest.backlog),
        "residual": number(latest.residual_ratio),
        "risk": "unknown" if job.risk is None else job.risk.level,
        "fewer bytes": f"{number(latest.wire_cf)}x",
        "sent": f"{size(totals.payload_bytes)} of {size(totals.dense_bytes)}",
        "loss": number(report.loss),
        "faults": f"{totals.nonfinite_steps} non-finite, {totals.failed_steps} failed",
    }
    for level, used in figures.links(report).items():
        pairs[f"{level} hosts"] = f"{size(used.bytes)} and {seconds(used.seconds)} a step"
    if not job.decision.epsilon:  # the policy does not ask for it
        del pairs["gain"]
    return Columns(
        [Text.assemble((f"{name} ", "dim"), value) for name, value in pairs.items()], padding=(0, 3)
    )


def _phases(latest: WindowView) -> Text:
    """Return the time of a step by phase, as a bar."""
    spent = [getattr(latest.report.phases, phase) for phase in PHASES]
    whole = sum(spent) or 1.0
    text = Text()
    for share, style in zip(spent, PHASE_STYLE, strict=True):
        text.append("█" * round(BAR * share / whole), style)
    for phase, share, style in zip(PHASES, spent, PHASE_STYLE, strict=True):
        text.append(f"  {phase.replace('_', ' ')} {100 * share / whole:.0f} %", style)
    return text


def _ranks(latest: WindowView) -> Listing:
    """Return the slowest ranks by their own work, because all ranks wait for each other in the network."""
    table = Listing((), ("Rank", "Step", "Speed (fastest rank: 1)", "Memory"), head="dim")
    views = rank_views(latest.report.ranks)
    for view in sorted(views, key=lambda view: view.relative_speed or 0)[:SLOWEST]:
        speed = number(view.relative_speed)
        table.add_row(str(view.row.rank), seconds(view.step_seconds), speed, size(view.row.memory_bytes))
    return table


def _decisions(decisions: list[DecisionView], compressor: str) -> Listing:
    table = Listing(("Time", "Window", "Plan"), prose="Reason", leaving=("Window",), head="dim")
    for view in decisions:
        decision = view.decision
        window = "start" if decision.window < 0 else str(decision.window)
        table.add_row(clock(view.time), window, plan(decision, compressor), printable(decision.reason))
    return table
