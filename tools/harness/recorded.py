"""A simulated training job that follows the controller's decisions, with numbers like those of a small language model.

Two ranks, 3.5 M elements, a 100 Mbit/s link: a dense step takes about 1.4 s, of which 1.2 s wait for the network. Under
policy ``auto``, what a plan takes and sends is that of ``plan_world``.
The sink receives the windows: over HTTP as from an agent, or into a journal on disk.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from pydantic import JsonValue

from gravac.policies import Plan, parse
from gravac.policies.auto import plans as auto_plans
from gravac.protocol import (
    Decision,
    End,
    Environment,
    Event,
    GainCurve,
    GainSums,
    HostLinks,
    InsideHosts,
    JobSpec,
    LevelSums,
    LinkSpec,
    ModelShape,
    OptimizerSpec,
    PhaseSeconds,
    PlanCost,
    PolicySpec,
    RankRow,
    SmoothedGain,
    WindowReport,
)
from tools.harness.plan_world import World
from tools.harness.sinks import Sink

ELEMENTS = 3_482_624
COMPUTE, COMPRESS, DENSE_NETWORK, DECOMPRESS, WAIT = 0.128, 0.028, 1.206, 0.006, 0.004
GAINS = {10.0: 0.66, 20.0: 0.58, 40.0: 0.55, 160.0: 0.22, 1000.0: 0.07}
INSIDE = 0.2
SAMPLES = 64
LONG_WINDOW: dict[str, float] = {"seconds": 600.0}
"""``play(**LONG_WINDOW)``: the job stays fresh for 5 windows, 50 minutes, where a busy machine needs more than 30 s."""
BATCH_BOUND = 1200
"""Samples a step; shown by the dense steps of the warm-up, when there are at least 2 ranks."""


@dataclass
class RecordedJob:
    """One job. ``play(n)`` reports n windows to ``sink``. ``decision``: the one in force."""

    sink: Sink
    job: str = "demo"
    window_steps: int = 20
    world_size: int = 2
    hosts: HostLinks | None = None
    """Two levels of links: a fifth of what steps wait for the network is inside hosts."""
    link: LinkSpec | None = field(default_factory=lambda: LinkSpec(bits_per_second=1e8))
    model: str = "LanguageModel"
    losses: bool = True
    curves: bool = False
    straggles: dict[int, range] = field(default_factory=dict)
    """Ranks that take 1.9 times as long, by the windows in which they do."""
    settings: dict[str, JsonValue] = field(
        default_factory=lambda: {"epsilon": 0.3, "retry_windows": 1_000_000}
    )
    """Of the policy ``gravac``. By default it holds what it found."""
    policy: Literal["gravac", "auto"] = "gravac"
    window: int = 0

    def __post_init__(self) -> None:
        self.world = World(ranks=self.world_size, compute=COMPUTE, elements=ELEMENTS, huffman=True)
        self.noise = random.Random(self.job)
        self.decision: Decision = self.sink.register(self.spec())

    def spec(self) -> JobSpec:
        rule = PolicySpec(name="gravac", settings=self.settings)
        optimizer: OptimizerSpec | None = None
        plans: tuple[PlanCost, ...] = ()
        if self.policy == "auto":
            rule = parse("auto").spec()
            optimizer = OptimizerSpec(
                name="SGD", kind="sgd", learning_rate=0.1, momentum=0.9, weight_decay=None
            )
            plans = tuple(map(self.world.cost, parse("auto").plans(self.compressor)))
        return JobSpec(
            job=self.job,
            incarnation="a1b2c3",
            world_size=self.world_size,
            window_steps=self.window_steps,
            policy=rule,
            optimizer=optimizer,
            plans=plans,
            compressor=self.compressor,
            memory="residual",
            model=ModelShape(name=self.model, tensors=7, elements=ELEMENTS),
            environment=Environment(
                python="3.11.7",
                torch="2.13.0",
                gravac="0.1.0",
                platform="Linux",
                backend="gloo",
                device="cpu",
            ),
            link=self.link,
            hosts=self.hosts,
        )

    @property
    def compressor(self) -> str:
        return "topk" if self.policy == "gravac" else auto_plans.DEFAULT_COMPRESSOR

    def play(self, windows: int = 1, **changes: object) -> Decision:
        """Report windows; ``changes`` overrides fields of each report."""
        for _ in range(windows):
            self.decision = self.sink.window(self.report(**changes))
            self.window += 1
        return self.decision

    def until(self, phase: str, most: int = 20) -> Decision:
        """Report windows until the decision is in ``phase``."""
        return self.play_until(lambda decision: decision.phase == phase, phase, most)

    def play_until(self, holds: Callable[[Decision], bool], what: str, most: int = 20) -> Decision:
        """Report windows until ``holds(decision)``. Raises AssertionError when ``most`` windows were not enough."""
        for _ in range(most):
            if holds(self.play()):
                return self.decision
        raise AssertionError(f"no {what} within {most} windows: {self.decision}")

    def event(self, kind: Literal["note", "nonfinite", "fallback"], message: str) -> None:
        self.sink.notify(self.job, Event(kind=kind, window=self.window, message=message))

    def end(self) -> None:
        steps = self.window * self.window_steps
        self.sink.notify(
            self.job, End(incarnation="a1b2c3", windows=self.window, steps=steps, message="closed")
        )

    def report(self, **changes: object) -> WindowReport:
        """The window the ranks ran under the decision in force."""
        decision, steps = self.decision, self.window_steps
        cf = next(
            (x for x in (decision.cf_candidate, decision.cf_minimum) if self.gain(x) >= decision.epsilon), 1.0
        )
        packed = cf > 1
        dense = 4 * ELEMENTS * self.world_size * steps
        network, payload = (
            DENSE_NETWORK / (cf * 0.92 if packed else 1),
            int(dense / cf * 1.06) if packed else dense,
        )
        if self.policy == "auto" and packed:
            plan = Plan(decision.codec, cf)
            network = self.world.exposed(plan)
            payload = self.world.cost(plan).payload_bytes * self.world_size * steps
        phases = PhaseSeconds(
            data_wait=steps * WAIT * self._about(0.2),
            compute=steps * COMPUTE * self._about(0.03),
            compress=steps * COMPRESS * self._about(0.1) * packed,
            communicate=steps * network * self._about(0.02),
            decompress=steps * DECOMPRESS * packed,
        )
        seconds = sum(value for _, value in phases)
        measured = sorted({decision.cf_minimum, decision.cf_candidate} - {1.0})
        given: dict[str, object] = {
            "job": self.job,
            "incarnation": "a1b2c3",
            "window": self.window,
            "first_step": self.window * steps,
            "last_step": (self.window + 1) * steps - 1,
            "epoch": decision.epoch,
            "phase": decision.phase,
            "cf": cf,
            "seconds": seconds,
            "samples": steps * SAMPLES,
            "dense_bytes": dense,
            "payload_bytes": payload,
            "loss": (2.1 + 7.0 / (1 + self.window / 5) ** 0.7) * self._about(0.012) if self.losses else None,
            "nonfinite_steps": 0,
            "failed_steps": 0,
            "levels": (self._level(decision, cf, seconds, phases.communicate, dense, payload),),
            "gains": tuple(SmoothedGain(cf=x, gain=self.gain(x), codec=decision.codec) for x in measured),
            "phases": phases,
            "ranks": tuple(self._rank(rank, phases) for rank in range(self.world_size)),
            "curve": self.curve() if self.curves else None,
            "inside": None
            if self.hosts is None
            else InsideHosts(sent_bytes=2 * dense, seconds=INSIDE * phases.communicate),
        }
        return WindowReport(**(given | changes))  # type: ignore[arg-type]

    def gain(self, cf: float) -> float:
        if self.policy == "auto":
            return 0.98
        return 1.0 if cf == 1 else GAINS.get(cf, 1 / cf)

    def curve(self) -> GainCurve:
        """The gain curve that a surveyed step would measure: ``GAINS``, interpolated over the logarithm of the CF."""
        known = {1.0: 1.0} | GAINS
        points = [(math.log10(cf), gain) for cf, gain in sorted(known.items())]
        gains = []
        for at in (step / 20 for step in range(61)):
            (low, high), (far, less) = next(pair for pair in pairwise(points) if at <= pair[1][0])
            gains.append(high + (less - high) * (at - low) / (far - low))
        return GainCurve(steps=3, own=True, gains=tuple(gains))

    def _level(
        self, decision: Decision, cf: float, seconds: float, network: float, dense: int, payload: int
    ) -> LevelSums:
        steps, sent = self.window_steps, self.gain(cf)
        residual = 0.0 if cf == 1 else 0.2 * (1 / sent - 1) * self._about(0.06)
        compensated = 2.0 + 2.2 * residual
        # The ranks' gradients agree just as much as those of a job with that bound do, in expectation.
        signal = 1 / (1 + (BATCH_BOUND - 1) * self.world_size / SAMPLES)
        mean_sq = 2.0 * (1 + (self.world_size - 1) * signal) / self.world_size**2
        plain = steps if decision.phase == "warmup" else 0
        return LevelSums(
            epoch=decision.epoch,
            cf=cf,
            codec=decision.codec,
            steps=steps,
            settled_steps=steps - 5,
            step_seconds_median=seconds / steps,
            exposed_seconds_median=network / steps,
            dense_bytes=dense,
            payload_bytes=payload,
            sums=GainSums(
                steps=steps,
                gradient_sq=2.0 * steps,
                compensated_sq=compensated * steps,
                sent_sq=compensated * sent * steps,
                minimum_sq=compensated * self.gain(decision.cf_minimum) * steps,
                candidate_sq=compensated * self.gain(decision.cf_candidate) * steps,
                residual_sq=12.0 * residual * steps,
                residual_dot_gradient=2.0 * residual * steps,
                mean_steps=plain,
                mean_sq=mean_sq * plain,
                mean_gradient_sq=2.0 * plain,
            ),
        )

    def _rank(self, rank: int, phases: PhaseSeconds) -> RankRow:
        slow = (1 + 0.11 * (rank % 3)) * (1.9 if self.window in self.straggles.get(rank, ()) else 1)
        mine = phases.model_copy(update={"compute": phases.compute * slow})
        return RankRow(
            rank=rank,
            steps=self.window_steps,
            step_seconds=sum(value for _, value in mine),
            phases=mine,
            samples=self.window_steps * SAMPLES // self.world_size,
            nonfinite_steps=0,
            failed_steps=0,
            memory_bytes=4 * ELEMENTS,
        )

    def _about(self, spread: float) -> float:
        return 1 + self.noise.uniform(-spread, spread)
