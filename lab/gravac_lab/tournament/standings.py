"""Standings: each plan of a task against dense and alone, the median over seeds with its spread."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gravac_lab.tournament.baseline import Baseline, baselines, place
from gravac_lab.tournament.curves import TARGET, retained_value, seconds_to
from gravac_lab.tournament.rows import ALONE, DENSE, Run

StepSeconds = Callable[[Run], float]
"""Duration of a step of a run on a link."""


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """A figure over seeds: median, lowest and highest of ``count`` known values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "SeedSpread | None":
        """Return the spread of the known values; None if there is none."""
        known = [value for value in values if value is not None]
        return cls(median(known), min(known), max(known), len(known)) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One plan of one task with one number of ranks.

    Attributes:
        task: what was learned.
        ranks: simulated ranks.
        steps: length of the runs.
        plan: the plan.
        optimizer: of the task.
        runs: of the plan, by seed.
        wire_cf: dense bytes / bytes handed to collectives; None where nothing is sent.
        loss: final held-out loss.
        above_dense: final loss / that of dense − 1.
        efficiency: η.
        retained: retained value.
        backlog: τ.
        progress: share of the dense way that the parameters went.
        gain: Σ‖sent‖² / Σ‖gradient + residual‖².
        step_seconds: on the link; None where no link was given.
        seconds: to the target on the link; None where no link was given or no seed reaches the target.
        reached: seeds that reach the target.
        speedup: seconds of dense / seconds of the plan.
    """

    task: str
    ranks: int
    steps: int
    plan: str
    optimizer: str
    runs: tuple[Run, ...]
    wire_cf: float | None
    loss: SeedSpread | None
    above_dense: SeedSpread | None
    efficiency: SeedSpread | None
    retained: SeedSpread | None
    backlog: SeedSpread | None
    progress: SeedSpread | None
    gain: SeedSpread | None
    step_seconds: float | None
    seconds: SeedSpread | None
    reached: int
    speedup: SeedSpread | None


def standings(
    runs: Sequence[Run], step_seconds: StepSeconds | None = None, target: float = TARGET
) -> list[Standing]:
    """Compare each run with dense and alone of the same task, ranks, steps and seed.

    Args:
        runs: of a tournament; figures that need a run which is missing are None.
        step_seconds: duration of a step on a link, for times to target.
        target: share of the steps of dense after which its loss is the target.

    Returns:
        Task by task in the order of the runs; in a task dense first, then by wire CF, alone last.
    """
    dense, alone = baselines(runs), {place(run): run for run in runs if run.plan == ALONE}
    groups: dict[tuple[str, int, int], dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault((run.task, run.ranks, run.steps), {}).setdefault(run.plan, []).append(run)
    found = []
    for plans in groups.values():
        known = [
            _standing(
                members,
                [dense.get(place(run)) for run in members],
                [alone.get(place(run)) for run in members],
                step_seconds,
                target,
            )
            for members in plans.values()
        ]
        found += sorted(known, key=_rank)
    return found


def _rank(standing: Standing) -> tuple[int, float]:
    group = {DENSE: 0, ALONE: 2}.get(standing.plan, 1)
    return group, standing.wire_cf or 0.0


def _standing(
    runs: Sequence[Run],
    dense: Sequence[Baseline | None],
    alone: Sequence[Run | None],
    step_seconds: StepSeconds | None,
    target: float,
) -> Standing:
    first = runs[0]
    pairs = [(run, base) for run, base in zip(runs, dense, strict=True) if base is not None]
    triples = [
        (run, base, lone)
        for run, base, lone in zip(runs, dense, alone, strict=True)
        if base is not None and lone is not None
    ]
    reached, speedups = [], []
    if step_seconds is not None:
        for run, base in pairs:
            level = base.target(target)
            theirs = base.steps_to(level) * step_seconds(base.run)
            ours = theirs if run.plan == DENSE else seconds_to(level, run.curve, step_seconds(run))
            if ours is not None:
                reached.append(ours)
                speedups.append(theirs / ours)
    return Standing(
        task=first.task,
        ranks=first.ranks,
        steps=first.steps,
        plan=first.plan,
        optimizer=first.optimizer,
        runs=tuple(runs),
        wire_cf=first.wire_cf,
        loss=SeedSpread.of(run.curve.final for run in runs),
        above_dense=SeedSpread.of(run.curve.final / base.final - 1.0 for run, base in pairs),
        efficiency=SeedSpread.of(base.efficiency(run.curve) for run, base in pairs),
        retained=SeedSpread.of(
            retained_value(lone.curve.final, base.final, run.curve.final) for run, base, lone in triples
        ),
        backlog=SeedSpread.of(run.backlog for run in runs),
        progress=SeedSpread.of(run.progress for run in runs),
        gain=SeedSpread.of(run.gain for run in runs),
        step_seconds=None if step_seconds is None else step_seconds(first),
        seconds=SeedSpread.of(reached),
        reached=len(reached),
        speedup=SeedSpread.of(speedups),
    )
