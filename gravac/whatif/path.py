"""Which CFs a policy would take in a scenario: the real policy and the real fold, on reports made from the model."""

from collections.abc import Iterator
from dataclasses import dataclass

from gravac.fold import JobFold
from gravac.policies.base import Policy
from gravac.protocol import Decision
from gravac.whatif.fleet import Fleet
from gravac.whatif.predict import Oracle, Scenario

STEADY_WINDOWS = 60
"""So many windows in hold with nothing changed: the rest of the run is taken to be like them."""
MOST_WINDOWS = 3000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Windows in a row of one decision. ``cf``: sent, after the gate; ``useful_samples``: delivered, samples · gain."""

    first_window: int
    windows: int
    decision: Decision
    cf: float
    step_seconds: float
    gain: float


@dataclass(frozen=True)
class Path:
    """A whole run. ``samples`` and ``useful_samples`` (samples · gain) were asked for; seconds until each is reached.
    ``payload_bytes``: of one rank until the useful samples are."""

    stretches: tuple[Stretch, ...]
    seconds_to_samples: float
    seconds_to_useful_samples: float
    payload_bytes: float

    @property
    def settled(self) -> Stretch:
        """What it ends with."""
        return self.stretches[-1]


def walk(oracle: Oracle, scenario: Scenario, policy: Policy, useful_samples: float, samples: float) -> Path:
    """Train until as much is delivered. Raises GainUnknown where the policy wants what cannot be told."""
    recorded = oracle.recording.spec
    spec = recorded.model_copy(
        update={
            "policy": policy.spec(),
            "policy_state": None,
            "first_window": 0,
            "world_size": scenario.ranks,
            "compressor": scenario.compressor,
        }
    )
    fleet = Fleet(oracle, scenario, spec)
    per_window = spec.window_steps * scenario.ranks * oracle.recording.samples_per_step
    stretches: list[Stretch] = []
    clock = _Clock(samples, useful_samples)
    for window, decision in _decisions(fleet, JobFold(spec, policy)):
        cf = fleet.sent(decision)
        told, gain = fleet.at(cf), fleet.gain(cf)
        _append(stretches, window, decision, cf, told.step.seconds, gain)
        rest = _steady(stretches[-1]) or window + 1 >= MOST_WINDOWS
        clock.run(
            spec.window_steps * told.step.seconds,
            per_window,
            gain,
            spec.window_steps * told.volume.payload_bytes,
            rest,
        )
        if clock.over:
            break
    return Path(tuple(stretches), clock.to_samples, clock.to_useful, clock.payload_bytes)


def _decisions(fleet: Fleet, fold: JobFold) -> Iterator[tuple[int, Decision]]:
    """The decision in force in each window."""
    window = 0
    while True:
        yield window, fold.decision
        fold.decide(fleet.report(window, fold.decision))
        window += 1


def _append(
    stretches: list[Stretch], window: int, decision: Decision, cf: float, seconds: float, gain: float
) -> None:
    last = stretches[-1] if stretches else None
    if last is not None and (last.cf, last.decision.epoch) == (cf, decision.epoch):
        stretches[-1] = Stretch(
            last.first_window, last.windows + 1, last.decision, cf, last.step_seconds, gain
        )
    else:
        stretches.append(Stretch(window, 1, decision, cf, seconds, gain))


def _steady(stretch: Stretch) -> bool:
    return stretch.decision.phase == "hold" and stretch.windows >= STEADY_WINDOWS


@dataclass
class _Clock:
    """Adds up windows until the samples asked for are there."""

    samples: float
    useful: float
    seconds: float = 0.0
    had: float = 0.0
    had_useful: float = 0.0
    to_samples: float = 0.0
    to_useful: float = 0.0
    payload_bytes: float = 0.0

    @property
    def over(self) -> bool:
        return self.had >= self.samples and self.had_useful >= self.useful

    def run(self, seconds: float, samples: float, gain: float, payload: float, rest: bool) -> None:
        """A window, or with ``rest`` as many like it as it takes; the last one in part."""
        until_samples = max(0.0, self.samples - self.had) / samples
        until_useful = max(0.0, self.useful - self.had_useful) / (samples * gain)
        windows = max(until_samples, until_useful) if rest else 1.0
        if self.had < self.samples:
            self.to_samples = self.seconds + min(windows, until_samples) * seconds
        if self.had_useful < self.useful:
            self.to_useful = self.seconds + min(windows, until_useful) * seconds
            self.payload_bytes += min(windows, until_useful) * payload
        self.seconds += windows * seconds
        self.had += windows * samples + (1e-6 if rest else 0.0)
        self.had_useful += windows * samples * gain + (1e-6 if rest else 0.0)
