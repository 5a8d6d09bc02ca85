"""Regret: the time to target of an adaptive policy against that of the best static plan in hindsight. Pure.

Times are relative to dense of the same task, ranks, link and seed (``Baseline``); of several seeds the median counts. A
run that never reaches the target counts as infinitely slow, so a median says "not reached" only where most do not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gravac_lab.tournament.baseline import Baseline, baselines
from gravac_lab.tournament.curves import LossCurve, retained_value, seconds_to
from gravac_lab.tournament.rows import ALONE, DENSE, Run
from gravac_lab.tournament.standings import StepSeconds

EVERY = 1.0
"""A bound that every plan keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretJob:
    """One job under an adaptive policy.

    Attributes:
        policy: as it was written.
        seed: of weights and data.
        by_step: held-out loss by step.
        by_seconds: held-out loss by seconds since the start; trials and changes of plan count.
        held: the plan that it ended with.
    """

    policy: str
    seed: int
    by_step: LossCurve
    by_seconds: LossCurve
    held: str


@dataclass(frozen=True, slots=True)
class Contender:
    """A plan or policy in one cell.

    Attributes:
        name: of the plan or policy.
        seeds: of its runs.
        times: seconds to the target / those of dense with the same seed, for each seed; infinite: not reached.
        efficiencies: η for each seed, None where no level is reached; empty: not asked for.
    """

    name: str
    seeds: tuple[int, ...]
    times: tuple[float, ...]
    efficiencies: tuple[float | None, ...] = ()

    @property
    def time(self) -> float:
        """Median of ``times``."""
        return median(self.times)

    @property
    def efficiency(self) -> float | None:
        """Median of the known ``efficiencies``; None unless most are known."""
        known = [each for each in self.efficiencies if each is not None]
        return median(known) if 2 * len(known) > len(self.efficiencies) else None

    def without(self, seed: int) -> "Contender | None":
        """Return the same without one seed; None if no other is left."""
        left = [place for place, each in enumerate(self.seeds) if each != seed]
        if not left:
            return None
        return Contender(
            self.name,
            tuple(self.seeds[place] for place in left),
            tuple(self.times[place] for place in left),
            tuple(self.efficiencies[place] for place in left) if self.efficiencies else (),
        )

    @property
    def reached(self) -> int:
        """Runs that reach the target."""
        return sum(math.isfinite(each) for each in self.times)

    def keeps(self, bound: float) -> bool:
        """Return whether the plan loses no more efficiency than ``bound``; with a bound of 1 every plan does."""
        if self.name == DENSE or bound >= EVERY:
            return True
        return self.efficiency is not None and self.efficiency >= 1.0 - bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a job learned in as many steps as dense.

    Attributes:
        above_dense: final held-out loss / that of dense − 1.
        retained: retained value; None where communication is worth nothing or alone was not run.
        worth: share of the steps of dense after which dense is as good; a target beyond it is not reached.
    """

    above_dense: float
    retained: float | None
    worth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One task on one link with one number of ranks.

    Attributes:
        task: what was learned.
        ranks: simulated ranks.
        link: its name.
        plans: static plans by name, dense among them, alone not.
        dense_run: the dense run without rounding errors, which a job that is dense throughout repeats bit for bit.
        alone: without communication; None: no such run.
        jobs: adaptive policies by name.
        held: plans that the jobs of each policy ended with, by seed.
        learned: what the jobs of each policy learned, by seed.
    """

    task: str
    ranks: int
    link: str
    plans: Mapping[str, Contender]
    dense_run: Contender
    alone: Contender | None
    jobs: Mapping[str, Contender]
    held: Mapping[str, tuple[str, ...]]
    learned: Mapping[str, tuple[Learned, ...]]

    def best(self, bound: float) -> Contender:
        """Return the fastest static plan that keeps a bound; dense where none is faster than dense."""
        return fastest(self.plans.values(), bound)

    def luck(self, bound: float) -> tuple[float, ...]:
        """Return how much longer the best plan takes when it is chosen on other seeds, relative, for each seed.

        That much of a regret is luck: of plans that differ by less than seeds do, hindsight takes the one that the
        noise of these seeds favors. Empty with fewer than two seeds.
        """
        found, least = [], self.best(bound).time
        for seed in self.plans[DENSE].seeds:
            others = [each for plan in self.plans.values() if (each := plan.without(seed)) is not None]
            if not any(each.name == DENSE for each in others):
                return ()
            chosen = self.plans[fastest(others, bound).name]
            if seed in chosen.seeds:
                found.append(chosen.times[chosen.seeds.index(seed)] / least - 1.0)
        return tuple(found)

    def regret(self, policy: str, bound: float) -> float:
        """Return how much longer a policy takes than the best plan, relative; below 0: it takes less."""
        return self.jobs[policy].time / self.best(bound).time - 1.0

    def against_dense(self, policy: str) -> float | None:
        """Return how much longer a policy takes than the dense run of its seed, relative, the median over seeds.

        None where neither reaches the target.
        """
        job, theirs = self.jobs[policy], dict(zip(self.dense_run.seeds, self.dense_run.times, strict=True))
        pairs = [(time, theirs[seed]) for seed, time in zip(job.seeds, job.times, strict=True)]
        known = [found for one, other in pairs if (found := _longer(one, other)) is not None]
        return median(known) if known else None

    def against_alone(self, policy: str) -> float | None:
        """Return how much longer a policy takes than alone, relative; None where neither reaches the target."""
        return None if self.alone is None else _longer(self.jobs[policy].time, self.alone.time)

    def rival(self, families: Sequence[str]) -> Contender | None:
        """Return the fastest plan of some families, whatever it loses; None: there is no such plan."""
        known = [plan for name, plan in self.plans.items() if family(name) in families]
        return min(known, key=lambda each: each.time, default=None)

    def speedup(self, policy: str, over: Contender) -> float | None:
        """Return the time of a plan / the time of a policy; None where neither reaches the target."""
        longer = _longer(over.time, self.jobs[policy].time)
        return None if longer is None else longer + 1.0


def fastest(plans: Iterable[Contender], bound: float) -> Contender:
    """Return the fastest plan that keeps a bound; dense, which must be among them, where none is faster."""
    return min(
        (plan for plan in plans if plan.keeps(bound)), key=lambda each: (each.time, each.name != DENSE)
    )


def family(plan: str) -> str:
    """Return the codec of a plan without settings, strength and memory: ``qsgd`` of ``qsgd:bits=2@16``."""
    return plan.partition("@")[0].partition(":")[0]


def cell(
    task: str,
    ranks: int,
    link: str,
    runs: Sequence[Run],
    jobs: Sequence[RegretJob],
    step_seconds: StepSeconds,
    target: float,
) -> Cell | None:
    """Compare the runs and jobs of one task on one link.

    Args:
        task: what was learned.
        ranks: of all runs and jobs.
        link: its name.
        runs: static plans, alone, dense and its repetitions, all of as many steps.
        jobs: under adaptive policies, of as many steps. Those of a seed without dense are left out.
        step_seconds: duration of a step of a run on the link.
        target: share of the steps of dense after which its loss is the target.

    Returns:
        None if no job is left to compare.
    """
    dense = {base.run.seed: base for base in baselines(runs).values()}
    lonely = {run.seed: run for run in runs if run.plan == ALONE}
    levels = {seed: base.target(target) for seed, base in dense.items()}
    whole = {seed: base.steps_to(levels[seed]) * step_seconds(base.run) for seed, base in dense.items()}

    def time(run: Run) -> float:
        if run.plan == DENSE:
            return 1.0
        return _reached(levels[run.seed], run.curve, step_seconds(run)) / whole[run.seed]

    def contender(name: str, members: Sequence[Run]) -> Contender:
        return Contender(
            name,
            tuple(run.seed for run in members),
            tuple(time(run) for run in members),
            tuple(dense[run.seed].efficiency(run.curve) for run in members),
        )

    plans: dict[str, list[Run]] = {}
    for run in runs:
        if run.seed in dense and not run.repeats_dense:
            plans.setdefault(run.plan, []).append(run)
    policies: dict[str, list[RegretJob]] = {}
    for job in jobs:
        if job.seed in dense:
            policies.setdefault(job.policy, []).append(job)
    if not policies:
        return None
    static = {name: contender(name, members) for name, members in plans.items()}
    return Cell(
        task=task,
        ranks=ranks,
        link=link,
        dense_run=Contender(
            DENSE,
            tuple(dense),
            tuple(
                _reached(levels[seed], base.run.curve, step_seconds(base.run)) / whole[seed]
                for seed, base in dense.items()
            ),
        ),
        alone=static.pop(ALONE, None),
        plans=static,
        jobs={
            name: Contender(
                name,
                tuple(job.seed for job in members),
                tuple(_reached(levels[job.seed], job.by_seconds) / whole[job.seed] for job in members),
            )
            for name, members in policies.items()
        },
        held={name: tuple(job.held for job in members) for name, members in policies.items()},
        learned={
            name: tuple(_learned(job, dense[job.seed], lonely.get(job.seed)) for job in members)
            for name, members in policies.items()
        },
    )


def _learned(job: RegretJob, dense: Baseline, alone: Run | None) -> Learned:
    final, base = job.by_step.final, dense.final
    return Learned(
        above_dense=final / base - 1.0,
        retained=None if alone is None else retained_value(alone.curve.final, base, final),
        worth=dense.worth(job.by_step),
    )


def _reached(level: float, curve: LossCurve, step_seconds: float = 1.0) -> float:
    """Return the seconds to a level; infinite: never."""
    found = seconds_to(level, curve, step_seconds)
    return math.inf if found is None else found


def _longer(one: float, other: float) -> float | None:
    """Return one time / another one − 1; None if both are infinite."""
    return None if math.isinf(one) and math.isinf(other) else one / other - 1.0
