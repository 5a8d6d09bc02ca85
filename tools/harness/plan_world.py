"""A pure world for policies that choose plans: step times and efficiencies by formula, steps played one by one.

Its truth differs from what a policy assumes: efficiencies are off the table, coding takes longer or shorter, part of an
exchange hides behind backward, and step times are noisy. A world may also change from step to step, and lie.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from statistics import median

from gravac import offers
from gravac.codec_text import is_coded, uncoded
from gravac.collectives import Network
from gravac.fold import JobFold
from gravac.policies import Plan, parse
from gravac.policies.auto import plans as auto_plans
from gravac.policies.base import DENSE
from gravac.predict.exchange import volume
from gravac.protocol import (
    Decision,
    GainCurve,
    GainSums,
    LevelSums,
    ModelShape,
    OptimizerSpec,
    Phase,
    PlanCost,
    SmoothedGain,
    WindowReport,
)
from gravac.signals import efficiency
from tools.harness.cluster import job_spec, level_sums, window_report

LAG_STEPS = 3
"""Steps after the end of a window until its decision is in force, as with a controller on the same machine."""
GOODPUT = 0.956
STRONG = 10.0
"""CF from which plans lose more in a young training and after a warm restart."""
DIP_STEPS, DIP = 100, 0.85
"""Steps for which strong plans lose more after a warm restart, and what they keep then of what they usually keep."""
HICCUP = 10.0
"""Times that a step with a hiccup takes."""
BURST_MEGABITS = 1e4
"""Of a token bucket that is not empty, in Mbit/s."""
SHOWN_STEPS = 25
"""Steps of a window in which ``World.shown_noise`` is the noise of the efficiency that it shows."""
BACK_STEPS = 3
"""From a slow step of a trial to the first step with the plan that the trial names."""


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
        true: Efficiencies of plans of which the table knows nothing.
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
        burst: Bytes of a token bucket, full at first and refilled at the rate of the link; 0: none.
        link: From which step on the rate of the link is how many times that of ``megabits``, in order.
        hiccups: Share of steps that take ``HICCUP`` times as long.
        late: A rank is late: from which step on, for how many steps, by how many seconds.
        young: Steps for which strong plans keep no more than an efficiency, and that efficiency.
        wrong: Loss of progress at CF 100 that no table shows, for the worst codec; by codec it is drawn up to this,
            and it grows with the square of log CF.
        restarts: Steps between warm restarts of the learning rate; 0: none. See ``DIP``.
        first_confirmed: ``confirmed`` at the first step, and steps in which it falls by a factor e toward that.
        shown_noise: Standard deviation of the efficiency that ``SHOWN_STEPS`` steps show.
        host: Seconds that the host queues a plan's work for a device, as measured at the start; 0: there is no device.
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
    true: tuple[tuple[Plan, float], ...] = ()
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
    burst: float = 0.0
    link: tuple[tuple[int, float], ...] = ()
    hiccups: float = 0.0
    late: tuple[int, int, float] | None = None
    young: tuple[int, float] | None = None
    wrong: float = 0.0
    restarts: int = 0
    first_confirmed: tuple[float, int] | None = None
    shown_noise: float = 0.0
    host: float = 0.0

    @cached_property
    def _kept(self) -> dict[tuple[Plan, float], float]:
        return {}

    @cached_property
    def _coded(self) -> dict[Plan, float]:
        return {
            plan: self.coding
            * offers.coding_seconds(
                plan.codec or auto_plans.DEFAULT_COMPRESSOR,
                plan.cf,
                self.elements,
                self.ranks if cost.decoded is None else cost.decoded,
            )
            for plan, cost in self.costs.items()
        }

    @property
    def changes(self) -> bool:
        """Whether what a plan takes or keeps depends on the step."""
        return bool(
            self.burst or self.link or self.late or self.young or self.restarts or self.first_confirmed
        )

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
        return tuple(plan for plan in plans if self.huffman or not is_coded(plan.codec or ""))

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
            host_seconds=0.0 if plan == DENSE else self.host,
        )

    def _wire(self, messages: float, link_bytes: float) -> float:
        return messages * self.latency + link_bytes / (GOODPUT * self.network.bytes_per_second)

    def rate(self, step: int) -> float:
        """Bytes per second of the link at a step, when no bucket has tokens."""
        times = 1.0
        for first, factor in self.link:
            times = factor if step >= first else times
        return times * GOODPUT * self.network.bytes_per_second

    def exposed(self, plan: Plan, step: int = 0, tokens: float = 0.0) -> float:
        """Seconds that a step waits for the network.

        Args:
            plan: The plan.
            step: Its number.
            tokens: Bytes in the bucket when it begins.
        """
        cost = self.costs[plan]
        fast = min(tokens, cost.link_bytes)
        wire = cost.messages * self.latency + (cost.link_bytes - fast) / self.rate(step)
        wire += fast / (GOODPUT * max(BURST_MEGABITS, self.megabits) * 1e6 / 8)
        waiting = self.waiting
        if self.late is not None and 0 <= step - self.late[0] < self.late[1]:
            waiting += self.late[2]
        return waiting + max(0.1 * wire, wire - self.hidden)

    def left(self, plan: Plan, step: int, tokens: float, seconds: float) -> float:
        """Tokens in the bucket after a step of so many seconds. Arguments as in ``exposed``."""
        sent, rate = self.costs[plan].link_bytes, self.rate(step)
        fast = min(tokens, sent)
        idle = max(0.0, seconds - (sent - fast) / rate)
        return min(self.burst, tokens - fast + rate * idle)

    def seconds(self, plan: Plan, step: int = 0, tokens: float = 0.0) -> float:
        """Seconds of a step without noise. Arguments as in ``exposed``."""
        return self.compute + self.exposed(plan, step, tokens) + self._coded[plan]

    def confirmed_at(self, step: int) -> float:
        """Part of the mean gradient that is not noise at a step."""
        if self.first_confirmed is None:
            return self.confirmed
        first, steps = self.first_confirmed
        return round(self.confirmed + (first - self.confirmed) * math.exp(-step / steps), 2)

    def efficiency(self, plan: Plan, step: int | None = None) -> float:
        """The true one at a step; None: at an usual one, late in training."""
        confirmed = self.confirmed if step is None else self.confirmed_at(step)
        kept = self._kept.get((plan, confirmed))
        if kept is None:
            kept = self._kept[plan, confirmed] = self._usual(plan, confirmed)
        if step is None or plan.cf < STRONG:
            return kept
        if self.young is not None and step < self.young[0]:
            kept = min(kept, self.young[1])
        if self.restarts and step >= self.restarts and step % self.restarts < DIP_STEPS:
            kept *= DIP
        return kept

    def _usual(self, plan: Plan, confirmed: float) -> float:
        """The table's, moved by up to ``off``, the same way for all plans of a codec, and less what is ``wrong``.

        Plans that lose less than three points are moved by less.
        """
        likely = self.expected(plan, confirmed)
        if plan == DENSE:
            return 1.0
        if plan in dict(self.true):
            return dict(self.true)[plan]
        codec = uncoded(plan.codec or auto_plans.DEFAULT_COMPRESSOR)
        name = offers.coding_family(codec)
        moved = self.off * Random(f"{self.seed}{name}").uniform(-1.0, 1.0) * min(1.0, (1.0 - likely) / 0.03)
        if self.wrong:
            strength = math.log(plan.cf) / math.log(100.0)
            moved -= self.wrong * Random(f"{self.seed}wrong{name}").random() * strength * strength
        return min(1.0, max(0.05, 1.0 - self.severity * (1.0 - likely) + moved))

    def expected(self, plan: Plan, confirmed: float | None = None) -> float:
        """The table's, for the noise of the gradient; None: for ``confirmed`` of the world."""
        codec = plan.codec or auto_plans.DEFAULT_COMPRESSOR
        found = efficiency.expected(
            codec, plan.cf, self.kind, self.confirmed if confirmed is None else confirmed
        )
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

    def best_replayed(self, progress: float, bound: float, factors: Sequence[float]) -> tuple[Plan, float]:
        """As ``best_static``, where the world changes: step by step, with the noise that a job met.

        Args:
            progress: To make, in dense steps.
            bound: A plan keeps it if all its steps together do.
            factors: On the seconds of each step; later steps have none.
        """
        found: list[tuple[float, Plan]] = []
        for plan in self.plans():
            if not self.shown(plan) and self.expected(plan) < 1.0 - bound - 1e-9:
                continue
            seconds, steps = self._replay(plan, progress, factors)
            if progress / steps >= 1.0 - bound - 1e-9:
                found.append((seconds, plan))
        seconds, best = min(found)
        return best, seconds

    def _replay(self, plan: Plan, progress: float, factors: Sequence[float]) -> tuple[float, float]:
        """Seconds and steps, the last one in part, until a plan makes a progress."""
        if not self.changes:
            steps = progress / self.efficiency(plan)
            return steps * self.seconds(plan) * sum(factors) / len(factors), steps
        tokens, took, number = self.burst, 0.0, 0
        while True:
            kept = self.efficiency(plan, number)
            seconds = self.seconds(plan, number, tokens)
            seconds *= factors[number] if number < len(factors) else 1.0
            if kept >= progress:
                return took + seconds * progress / kept, number + progress / kept
            if self.burst:
                tokens = self.left(plan, number, tokens, seconds)
            progress, took, number = progress - kept, took + seconds, number + 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job.

    Attributes:
        plan: It sent with.
        phase: Of the decision in force.
        trial: It tries a plan: its phase is explore, and the trial had not ended.
        epoch: Of the decision in force.
        window: That it belongs to.
        seconds: It took.
        factor: On what it takes without noise.
        before: Seconds that it would have taken with the plan held before; equal to ``seconds`` if it is no trial.
        kept: Its efficiency.
    """

    plan: Plan
    phase: Phase
    trial: bool
    epoch: int
    window: int
    seconds: float
    factor: float
    before: float
    kept: float


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
    played: list[Step] = field(init=False, default_factory=list)
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
        self._random, self._rare = Random(world.seed), Random(f"{world.seed}rare")
        self._in_force, self._held = self.fold.decision, DENSE
        self._arriving: deque[tuple[int, Decision]] = deque()
        self._began, self._level_steps, self._tokens = 0, 0, world.burst
        self._ends: int | None = None  # first step after a trial that took too long
        self._levels: dict[tuple[int, Plan], list[tuple[float, float]]] = {}
        self._steps: dict[tuple[int, Plan], list[float]] = {}

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
        number, world = len(self.sent), self.world
        while self._arriving and number >= self._arriving[0][0]:
            _, arrived = self._arriving.popleft()
            if arrived.epoch != self._in_force.epoch:
                self._level_steps = 0
            self._in_force, self._ends = arrived, None
        if self._ends == number:
            self._level_steps = 0
            if number > self._began:
                self._close(number, changes, self._longest())
        decision, ended = self._in_force, self._ends is not None and number >= self._ends
        sends = decision.trial if ended and decision.trial is not None else None
        plan = Plan(decision.codec, decision.cf_candidate) if sends is None else Plan(sends.codec, sends.cf)
        plan = DENSE if plan.cf == 1.0 else plan
        factor = 1.0 if self.disturb is None else self.disturb(number)
        factor *= max(0.1, self._random.gauss(1.0, world.noise))
        if world.hiccups and self._rare.random() < world.hiccups:
            factor *= HICCUP
        tokens = self._tokens
        plain, trial = world.seconds(plan, number, tokens), decision.phase == "explore" and not ended
        seconds, kept = plain * factor, world.efficiency(plan, number)
        before = factor * world.seconds(self._held, number, tokens) if trial else seconds
        self.sent.append(plan)
        self.played.append(
            Step(
                plan, decision.phase, trial, decision.epoch, len(self.reports), seconds, factor, before, kept
            )
        )
        if not trial:
            self._held = plan
        if world.burst:
            self._tokens = world.left(plan, number, tokens, seconds)
        self.seconds += seconds
        self.progress += kept
        self._level_steps += 1
        key = (decision.epoch, plan)
        self._steps.setdefault(key, []).append(kept)
        if self._level_steps > world.settling_steps:
            exposed = world.exposed(plan, number, tokens) * seconds / plain
            self._levels.setdefault(key, []).append((seconds, min(seconds, exposed)))
        if (
            decision.trial is not None
            and trial
            and self._ends is None
            and seconds > decision.trial.step_seconds
        ):
            self._ends = number + BACK_STEPS
        length = None if ended else decision.window_steps
        if number + 1 - self._began >= (length or world.window):
            self._close(number + 1, changes, self._longest() if self._ends == number + 1 else None)

    def _longest(self) -> float:
        """Seconds of the longest step of the trial that ends."""
        epoch = self._in_force.epoch
        return max(each.seconds for each in self.played if each.trial and each.epoch == epoch)

    def _close(self, end: int, changes: dict[str, object], trial_seconds: float | None = None) -> None:
        levels = tuple(
            self._level(epoch, plan, kept, self._levels.get((epoch, plan), []), end - 1)
            for (epoch, plan), kept in self._steps.items()
        )
        decision = self._in_force
        given: dict[str, object] = {
            "window": len(self.reports),
            "first_step": self._began,
            "last_step": end - 1,
            "epoch": decision.epoch,
            "phase": decision.phase,
            "cf": self.sent[-1].cf,
            "seconds": sum(each.seconds for each in self.played[self._began : end]),
            "samples": 64 * (end - self._began),
            "levels": levels,
            "gains": ()
            if decision.dense
            else (SmoothedGain(cf=decision.cf_candidate, gain=0.9, codec=decision.codec),),
            "curve": self._curve(),
            "trial_seconds": trial_seconds,
        }
        report = window_report(**(given | changes))
        self.reports.append(report)
        self.decisions.append(self.fold.decide(report))
        self._arriving.append((end + LAG_STEPS, self.last))
        self._began, self._levels, self._steps = end, {}, {}

    def _level(
        self, epoch: int, plan: Plan, kept: list[float], settled: list[tuple[float, float]], last: int
    ) -> LevelSums:
        world, steps = self.world, len(kept)
        seconds = median(each for each, _ in settled) if settled else None
        exposed = median(each for _, each in settled) if settled else None
        level = level_sums(epoch, plan.cf, steps, len(settled), seconds, exposed, plan.codec)
        energy = world.gradient * level.sums.gradient_sq
        sums = level.sums.model_copy(update={"gradient_sq": energy})
        shown = sum(kept) / steps
        if world.shown_noise and plan != DENSE:
            noise = world.shown_noise * math.sqrt(SHOWN_STEPS / steps)
            shown = min(1.0, max(0.05, self._rare.gauss(shown, noise)))
        confirmed = world.confirmed_at(last) if world.reference else None
        return level.model_copy(update={"sums": shows(shown, plan, world, confirmed, sums)})

    def _curve(self) -> GainCurve:
        """What compresses worse has less energy in its largest elements."""
        tenth = 0.6 / self.world.severity
        gains = tuple(min(1.0, max(0.0, 1.0 - (1.0 - tenth) * place / 20)) for place in range(61))
        return GainCurve(steps=3, own=False, gains=gains)


def shows(eta: float, plan: Plan, world: World, confirmed: float | None, sums: GainSums) -> GainSums:
    """Return sums of a window that show an efficiency: the inverse of ``gravac.signals.efficiency.measured``.

    Late gradients show it under SGD; under Adam the parameters fall behind. Optimizers that bear late gradients show
    only what is lost beyond the simulated loss. What simulations say weighs in later, so it is not undone here.

    Args:
        eta: The efficiency.
        plan: That was sent with.
        world: Of the job.
        confirmed: Part of the mean gradient that is not noise; None: the window is not next to a dense reference.
        sums: Of the window, without these.
    """
    codec, kind = plan.codec or auto_plans.DEFAULT_COMPRESSOR, world.kind
    late = plan != DENSE and efficiency.counts_late(codec, kind)
    expected = efficiency.of_job(codec, plan.cf, kind, world.ranks, confirmed) if late else None
    if expected is not None:
        eta = min(1.0, eta / expected.likely)
    lost = 1.0 / eta - 1.0
    if confirmed is None or expected is not None:
        per_step = efficiency.PER_BACKLOG if kind == "sgd" else efficiency.PER_BACKLOG_OTHERS
        backlog = lost / per_step + (0.0 if expected is None else efficiency.AGED_BACKLOG)
    else:
        backlog = lost / (efficiency.PER_LATE * confirmed) if kind == "sgd" else 0.0
    shown: dict[str, float] = {"residual_dot_gradient": backlog * sums.gradient_sq}
    if confirmed is not None:
        behind = lost / efficiency.PER_LOST
        behind += 0.0 if expected is None else efficiency.AGED_PROGRESS_LOSS
        shown |= {
            "progress_steps": sums.steps,
            "reference_sq": 1.0,
            "moved_dot_reference": 1.0 if kind == "sgd" else math.exp(-behind),
            "raw_mean_sq": 1.0,
            "raw_dot_next": confirmed,
        }
    return sums.model_copy(update=shown)
