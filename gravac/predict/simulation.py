"""Simulated runs: which plans a policy would choose in a scenario, with the real policy on predicted window reports."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gravac.fold import JobFold
from gravac.policies.base import Policy
from gravac.predict.exchange import UnknownSizes, codec_of, sizes_of
from gravac.predict.fleet import Fleet
from gravac.predict.predictor import Predictor, Scenario
from gravac.protocol import CodecSize, Decision, JobSpec, PlanCost

STEADY_WINDOWS = 60
"""Windows in hold without a change after which the rest of the run is assumed to be like them."""
MAX_WINDOWS = 3000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive windows under one decision.

    Attributes:
        first_window: Number of the first one.
        windows: Number of windows.
        decision: Decision in force.
        codec: Codec that the ranks send with.
        cf: CF that the gate lets through.
        step_seconds: Duration of a step.
        efficiency: Statistical efficiency of both; None: unknown.
    """

    first_window: int
    windows: int
    decision: Decision
    codec: str
    cf: float
    step_seconds: float
    efficiency: float | None


@dataclass(frozen=True)
class SimulatedRun:
    """A simulated run.

    Attributes:
        stretches: The stretches, in order.
        seconds_to_samples: Seconds until the samples asked for were processed.
        seconds_to_useful_samples: Seconds until the useful samples (samples · η) asked for were; None: an η is unknown.
        payload_bytes: Bytes of one rank until then, or until ``seconds_to_samples``.
    """

    stretches: tuple[Stretch, ...]
    seconds_to_samples: float
    seconds_to_useful_samples: float | None
    payload_bytes: float

    @property
    def settled(self) -> Stretch:
        """The last stretch."""
        return self.stretches[-1]


def simulate(
    predictor: Predictor, scenario: Scenario, policy: Policy, useful_samples: float, samples: float
) -> SimulatedRun:
    """Simulate a run until it has processed ``samples`` and delivered ``useful_samples`` (samples · η).

    Raises:
        ValueError: ``GainUnknown``, where the policy asks for a CF whose gain the trace does not determine, or
            ``UnknownSizes``, where it asks for one whose payload cannot be predicted.
    """
    recorded = predictor.recording.spec
    spec = recorded.model_copy(
        update={
            "policy": policy.spec(),
            "policy_state": None,
            "first_window": 0,
            "world_size": scenario.ranks,
            "compressor": scenario.compressor,
            "hosts": recorded.hosts
            and recorded.hosts.model_copy(update={"hosts": predictor.recording.levels.hosts(scenario.ranks)}),
            "sizes": _sizes(recorded, scenario, policy),
        }
    )
    spec = spec.model_copy(update={"plans": _costs(predictor, scenario, policy, spec)})
    fleet = Fleet(predictor, scenario, spec)
    per_window = spec.window_steps * scenario.ranks * predictor.recording.samples_per_step
    stretches: list[Stretch] = []
    clock = _Clock(samples, useful_samples)
    for window, decision in _decisions(fleet, JobFold(spec, policy)):
        cf = fleet.sent(decision)
        predicted = fleet.predict(cf, decision.codec if cf > 1.0 else None)
        efficiency = None if predicted.efficiency is None else predicted.efficiency.likely
        _append(
            stretches, Stretch(window, 1, decision, predicted.codec, cf, predicted.step.seconds, efficiency)
        )
        rest = _steady(stretches[-1]) or window + 1 >= MAX_WINDOWS
        clock.run(
            spec.window_steps * predicted.step.seconds,
            per_window,
            efficiency,
            spec.window_steps * predicted.volume.payload_bytes,
            rest,
        )
        if clock.over:
            break
    return SimulatedRun(tuple(stretches), clock.to_samples, clock.to_useful, clock.payload_bytes)


def _decisions(fleet: Fleet, fold: JobFold) -> Iterator[tuple[int, Decision]]:
    """Yield the decision in force in each window."""
    window = 0
    while True:
        yield window, fold.decision
        fold.decide(fleet.report(window, fold.decision))
        window += 1


def _sizes(recorded: JobSpec, scenario: Scenario, policy: Policy) -> tuple[CodecSize, ...]:
    """Return the CFs of the codecs that reach few of them. Those of an aggregator are known only as recorded."""
    codecs = ((None, scenario.compressor), *((codec, codec) for codec in policy.codecs()))
    found = [
        CodecSize(codec=name, cf=size.cf, up_to=size.up_to)
        for name, text in codecs
        for size in sizes_of(text)
    ]
    if scenario.compressor == recorded.compressor and codec_of(recorded.compressor) is None:
        found += recorded.sizes_of(None)
    return tuple(found)


def _costs(predictor: Predictor, scenario: Scenario, policy: Policy, spec: JobSpec) -> tuple[PlanCost, ...]:
    """Return what the plans of the policy cost in the scenario; those whose size is unknown are left out."""
    found = []
    for plan in policy.plans(scenario.compressor):
        compressor = scenario.compressor if plan.codec is None else plan.codec
        cf = spec.reached(plan.codec, plan.cf)
        try:
            sized = predictor.predict(replace(scenario, compressor=compressor), cf).volume
        except UnknownSizes:
            continue
        cost = PlanCost(
            codec=plan.codec,
            cf=cf,
            payload_bytes=round(sized.payload_bytes),
            link_bytes=sized.link_bytes,
            messages=sized.messages,
            decoded=sized.decoded,
        )
        found.append(cost)
    return tuple(found)


def _append(stretches: list[Stretch], new: Stretch) -> None:
    last = stretches[-1] if stretches else None
    if last is not None and (last.cf, last.decision.epoch) == (new.cf, new.decision.epoch):
        stretches[-1] = replace(last, windows=last.windows + 1)
    else:
        stretches.append(new)


def _steady(stretch: Stretch) -> bool:
    return stretch.decision.phase == "hold" and stretch.windows >= STEADY_WINDOWS


@dataclass
class _Clock:
    """Adds up windows until the samples asked for are reached."""

    samples: float
    useful: float
    seconds: float = 0.0
    reached: float = 0.0
    reached_useful: float = 0.0
    to_samples: float = 0.0
    to_useful: float | None = 0.0
    payload_bytes: float = 0.0

    @property
    def over(self) -> bool:
        useful = self.to_useful is None or self.reached_useful >= self.useful
        return self.reached >= self.samples and useful

    def run(
        self, seconds: float, samples: float, efficiency: float | None, payload: float, rest: bool
    ) -> None:
        """Add a window, or with ``rest`` as many like it as needed; the last one in part."""
        until_samples = max(0.0, self.samples - self.reached) / samples
        until_useful = until_samples
        if efficiency is None:
            self.to_useful = None
        elif self.to_useful is not None:
            until_useful = max(0.0, self.useful - self.reached_useful) / (samples * efficiency)
        windows = max(until_samples, until_useful) if rest else 1.0
        if self.reached < self.samples:
            self.to_samples = self.seconds + min(windows, until_samples) * seconds
        if self.to_useful is not None and self.reached_useful < self.useful:
            self.to_useful = self.seconds + min(windows, until_useful) * seconds
        self.payload_bytes += min(windows, until_useful) * payload
        self.seconds += windows * seconds
        self.reached += windows * samples + (1e-6 if rest else 0.0)
        self.reached_useful += windows * samples * (efficiency or 0.0) + (1e-6 if rest else 0.0)
