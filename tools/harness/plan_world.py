"""A pure world for policies that choose plans: step times and efficiencies by formula, steps played one by one.

Its truth differs from what a policy assumes: efficiencies are off the table, coding takes longer or shorter, part of an
exchange hides behind backward, and step times are noisy.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from statistics import median

from gravac import offers
from gravac.collectives import Network
from gravac.fold import JobFold
from gravac.policies import Plan, parse
from gravac.policies.auto import plans as auto_plans
from gravac.policies.base import DENSE
from gravac.protocol import (
    Decision,
    GainCurve,
    GainSums,
    LevelSums,
    ModelShape,
    OptimizerSpec,
    PlanCost,
    SmoothedGain,
    WindowReport,
)
from gravac.signals import efficiency
from gravac.whatif.exchange import volume
from tools.harness.cluster import job_spec, level_sums, window_report

LAG_STEPS = 3
"""Steps after the end of a window until its decision is in force, as with a controller on the same machine."""
GOODPUT = 0.956


@dataclass(frozen=True)
class World:
    """A job and its network.

    Attributes:
        ranks: World size.
        megabits: Of each rank's link, in Mbit/s.
        compute: Own work of a step in seconds.
        elements: Of the gradient.
        kind: Of the optimizer.
        hidden: Seconds of an exchange that hide behind backward.
        waiting: Seconds of every step for slower ranks.
        coding: Coding time / what the policy assumes.
        off: True efficiency - that of the table, for the strongest loss; by codec and CF it is drawn up to this.
        severity: Factor on all losses of efficiency.
        noise: Relative standard deviation of a step.
        latency: Of a message in seconds.
        window: Steps of a window.
        settling_steps: Steps after a change that do not count.
        probe: What the network measured at the start says of seconds / the truth; None: it was not measured.
        reference: Windows are next to a dense reference, so they show the efficiency of plans under Adam, too, and the
            noise of the gradient.
        confirmed: Part of the mean gradient that is not noise.
        gradient: Energy of a step's gradients, relative to the usual one.
        huffman: Plans with Huffman coding are in the space, as on CPUs.
        seed: Of noise and efficiencies.
    """

    ranks: int = 4
    megabits: float = 100.0
    compute: float = 0.3
    elements: int = 3_200_000
    kind: str = "sgd"
    hidden: float = 0.0
    waiting: float = 0.0
    coding: float = 1.0
    off: float = 0.0
    severity: float = 1.0
    noise: float = 0.03
    latency: float = 1e-4
    window: int = 50
    settling_steps: int = 3
    probe: float | None = 1.0
    reference: bool = False
    confirmed: float = efficiency.TYPICAL_CONFIRMED
    gradient: float = 1.0
    huffman: bool = False
    seed: int = 0

    @cached_property
    def network(self) -> Network:
        return Network(latency_seconds=self.latency, bytes_per_second=self.megabits * 1e6 / 8)

    @cached_property
    def costs(self) -> dict[Plan, PlanCost]:
        """Of each plan, dense first."""
        every = auto_plans.plans((), auto_plans.DEFAULT_COMPRESSOR, self.kind)
        return {plan: self.cost(plan) for plan in self.usable(every)}

    def usable(self, plans: Iterable[Plan]) -> tuple[Plan, ...]:
        """Those of the plans that the jobs of this world may use."""
        return tuple(
            plan for plan in plans if self.huffman or not (plan.codec or "").endswith(auto_plans.CODING)
        )

    def cost(self, plan: Plan) -> PlanCost:
        found = volume(
            plan.codec or auto_plans.DEFAULT_COMPRESSOR, self.elements, plan.cf, self.ranks, self.network
        )
        return PlanCost(
            codec=plan.codec,
            cf=plan.cf,
            payload_bytes=round(found.payload_bytes),
            link_bytes=found.link_bytes,
            messages=found.messages,
            decoded=found.decoded,
            seconds=None if self.probe is None else self.probe * self._wire(found.messages, found.link_bytes),
        )

    def _wire(self, messages: float, link_bytes: float) -> float:
        return messages * self.latency + link_bytes / (GOODPUT * self.network.bytes_per_second)

    def exposed(self, plan: Plan) -> float:
        cost = self.costs[plan]
        wire = self._wire(cost.messages, cost.link_bytes)
        return self.waiting + max(0.1 * wire, wire - self.hidden)

    def seconds(self, plan: Plan) -> float:
        return self.compute + self.exposed(plan) + self.coding * self.coding_seconds(plan)

    def coding_seconds(self, plan: Plan) -> float:
        """What the policy assumes."""
        codec, decoded = plan.codec or auto_plans.DEFAULT_COMPRESSOR, self.costs[plan].decoded
        payloads = self.ranks if decoded is None else decoded
        return offers.coding_seconds(codec, plan.cf, self.elements, payloads)

    def efficiency(self, plan: Plan) -> float:
        """The true one: the table's, moved by up to ``off``, the same way for all plans of a codec.

        Plans that lose less than three points are moved by less.
        """
        likely = self.expected(plan)
        if plan == DENSE:
            return 1.0
        name = offers.coding_family(
            (plan.codec or auto_plans.DEFAULT_COMPRESSOR).removesuffix(auto_plans.CODING)
        )
        moved = self.off * Random(f"{self.seed}{name}").uniform(-1.0, 1.0) * min(1.0, (1.0 - likely) / 0.03)
        return min(1.0, max(0.05, 1.0 - self.severity * (1.0 - likely) + moved))

    def expected(self, plan: Plan) -> float:
        """The table's, for the noise of the gradient."""
        codec = plan.codec or auto_plans.DEFAULT_COMPRESSOR
        found = efficiency.expected(codec, plan.cf, self.kind, self.confirmed)
        assert found is not None
        return efficiency.with_ranks(found, codec, self.ranks, self.kind).likely

    def shown(self, plan: Plan) -> bool:
        """Whether windows show what a plan loses where they are not next to a dense reference."""
        codec = plan.codec or auto_plans.DEFAULT_COMPRESSOR
        return self.kind in efficiency.TELLING and not efficiency.errs_more(codec, self.ranks, self.kind)

    def plans(self) -> tuple[Plan, ...]:
        return tuple(self.costs)

    def static_seconds(self, plan: Plan, progress: float) -> float:
        """Seconds to make the progress of that many dense steps."""
        return progress / self.efficiency(plan) * self.seconds(plan)

    def best_static(self, progress: float, bound: float) -> tuple[Plan, float]:
        """The best plan in hindsight that keeps the bound, and its seconds.

        Where windows do not show the efficiency, it must also be expected to keep it: nobody can know better.
        """
        keeping = [
            plan
            for plan in self.plans()
            if self.efficiency(plan) >= 1.0 - bound - 1e-9
            and (self.shown(plan) or self.expected(plan) >= 1.0 - bound - 1e-9)
        ]
        best = min(keeping, key=lambda plan: self.static_seconds(plan, progress))
        return best, self.static_seconds(best, progress)


@dataclass
class Job:
    """A job under a policy, step by step."""

    world: World
    policy: str = "auto"
    memory: str = "residual"
    fold: JobFold = field(init=False)
    reports: list[WindowReport] = field(init=False, default_factory=list)
    decisions: list[Decision] = field(init=False)
    sent: list[Plan] = field(init=False, default_factory=list)
    seconds: float = 0.0
    progress: float = 0.0
    disturb: Callable[[int], float] | None = None
    """Factor on the seconds of a step, by its number."""

    def __post_init__(self) -> None:
        rule, world = parse(self.policy), self.world
        compressor = auto_plans.DEFAULT_COMPRESSOR
        optimizer = OptimizerSpec.model_validate(
            {"name": "Any", "kind": world.kind, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": None}
        )
        spec = job_spec(
            rule.spec(),
            world_size=world.ranks,
            window_steps=world.window,
            compressor=compressor,
            memory=self.memory,
            optimizer=optimizer,
            model=ModelShape(name="Net", tensors=4, elements=world.elements),
        )
        plans = tuple(world.cost(plan) for plan in world.usable(rule.fitted(spec).plans(compressor)))
        spec = spec.model_copy(update={"plans": plans})
        self.fold = JobFold(spec)
        self.decisions = [self.fold.decision]
        self._random = Random(world.seed)
        self._in_force = self.fold.decision
        self._arriving: deque[tuple[int, Decision]] = deque()
        self._began, self._level_steps, self._window_seconds = 0, 0, 0.0
        self._levels: dict[tuple[int, Plan], list[float]] = {}
        self._steps: dict[tuple[int, Plan], int] = {}

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    @property
    def plan(self) -> Plan:
        """The plan of the newest decision."""
        return Plan(self.last.codec, self.last.cf_candidate)

    @property
    def rules(self) -> list[str]:
        return [decision.rule for decision in self.decisions]

    def change(self, **changes: object) -> None:
        """Change the world in mid-run."""
        self.world = replace(self.world, **changes)  # type: ignore[arg-type]

    def windows(self, count: int, **changes: object) -> Decision:
        """Play whole windows. ``changes``: fields that their reports have instead."""
        until = len(self.reports) + count
        while len(self.reports) < until:
            self.step(**changes)
        return self.last

    def until(self, progress: float) -> float:
        """Play until as much progress is made as that many dense steps make. Returns the seconds."""
        while self.progress < progress:
            self.step()
        return self.seconds

    def step(self, **changes: object) -> None:
        number = len(self.sent)
        while self._arriving and number >= self._arriving[0][0]:
            _, arrived = self._arriving.popleft()
            if arrived.epoch != self._in_force.epoch:
                self._level_steps = 0
            self._in_force = arrived
        decision = self._in_force
        plan = Plan(decision.codec, decision.cf_candidate)
        plan = DENSE if plan.cf == 1.0 else plan
        factor = 1.0 if self.disturb is None else self.disturb(number)
        seconds = self.world.seconds(plan) * factor * max(0.1, self._random.gauss(1.0, self.world.noise))
        self.sent.append(plan)
        self.seconds += seconds
        self._window_seconds += seconds
        self.progress += self.world.efficiency(plan)
        self._level_steps += 1
        key = (decision.epoch, plan)
        self._steps[key] = self._steps.get(key, 0) + 1
        if self._level_steps > self.world.settling_steps:
            self._levels.setdefault(key, []).append(seconds)
        if number + 1 - self._began >= (decision.window_steps or self.world.window):
            self._close(number + 1, changes)

    def _close(self, end: int, changes: dict[str, object]) -> None:
        levels = tuple(
            self._level(epoch, plan, steps, self._levels.get((epoch, plan), []))
            for (epoch, plan), steps in self._steps.items()
        )
        decision = self._in_force
        given: dict[str, object] = {
            "window": len(self.reports),
            "first_step": self._began,
            "last_step": end - 1,
            "epoch": decision.epoch,
            "phase": decision.phase,
            "cf": decision.cf_candidate,
            "seconds": self._window_seconds,
            "samples": 64 * (end - self._began),
            "levels": levels,
            "gains": ()
            if decision.dense
            else (SmoothedGain(cf=decision.cf_candidate, gain=0.9, codec=decision.codec),),
            "curve": self._curve(),
        }
        report = window_report(**(given | changes))
        self.reports.append(report)
        self.decisions.append(self.fold.decide(report))
        self._arriving.append((end + LAG_STEPS, self.last))
        self._began, self._levels, self._steps, self._window_seconds = end, {}, {}, 0.0

    def _level(self, epoch: int, plan: Plan, steps: int, settled: list[float]) -> LevelSums:
        world = self.world
        seconds = median(settled) if settled else None
        exposed = (
            None if seconds is None else min(seconds, world.exposed(plan) * seconds / world.seconds(plan))
        )
        level = level_sums(epoch, plan.cf, steps, len(settled), seconds, exposed, plan.codec)
        energy = world.gradient * level.sums.gradient_sq
        level = level.model_copy(update={"sums": level.sums.model_copy(update={"gradient_sq": energy})})
        if world.reference:
            return level.model_copy(update={"sums": self._next_to_dense(level.sums, world.efficiency(plan))})
        lost = efficiency.PER_BACKLOG if world.kind == "sgd" else efficiency.PER_BACKLOG_OTHERS
        backlog = (1.0 / world.efficiency(plan) - 1.0) / lost
        sums = level.sums.model_copy(update={"residual_dot_gradient": backlog * level.sums.gradient_sq})
        return level.model_copy(update={"sums": sums})

    def _next_to_dense(self, sums: GainSums, likely: float) -> GainSums:
        """Sums that show an efficiency: by late gradients under SGD; under Adam the parameters fall behind."""
        lost, confirmed = 1.0 / likely - 1.0, self.world.confirmed
        late = self.world.kind == "sgd"
        shown: dict[str, float] = {
            "residual_dot_gradient": lost / (efficiency.PER_LATE * confirmed) * sums.gradient_sq
            if late
            else 0.0,
            "progress_steps": sums.steps,
            "reference_sq": 1.0,
            "moved_dot_reference": 1.0 if late else math.exp(-lost / efficiency.PER_LOST),
            "raw_mean_sq": 1.0,
            "raw_dot_next": confirmed,
        }
        return sums.model_copy(update=shown)

    def _curve(self) -> GainCurve:
        """What compresses worse has less energy in its largest elements."""
        tenth = 0.6 / self.world.severity
        gains = tuple(min(1.0, max(0.0, 1.0 - (1.0 - tenth) * place / 20)) for place in range(61))
        return GainCurve(steps=3, own=False, gains=gains)
