"""What a step would take elsewhere: on another network, with more ranks, by another codec, at another CF."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot, log2
from statistics import median

from gravac.collectives import COLLECTIVES, Network
from gravac.whatif import exchange
from gravac.whatif.exchange import UnknownSizes, Volume, volume
from gravac.whatif.fit import Fit, fit, fit_samples, network_of
from gravac.whatif.gains import Gain, GainModel
from gravac.whatif.recording import Recording
from gravac.whatif.timemodel import StepTime

LEAST_ERROR = 0.02
ELSEWHERE_ERROR = 0.05
"""Of the exposed time, on a network the model was not fitted on: goodput and handling differ."""
DOUBLING_ERROR = 0.05
"""Of the step, for each doubling of the ranks: the slowest of more ranks is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Where and how to train."""

    network: Network
    ranks: int
    compressor: str


@dataclass(frozen=True, slots=True)
class Foretold:
    """One CF in one scenario. ``low`` and ``high``: seconds between which most windows' median step should lie (two
    standard errors). T_sys = ``samples_per_second`` of all ranks; T_comp = ``useful_samples_per_second``."""

    cf: float
    step: StepTime
    low: float
    high: float
    volume: Volume
    gain: Gain
    samples_per_second: float

    @property
    def useful_samples_per_second(self) -> float | None:
        """T_sys · gain; None where the gain cannot be told."""
        return None if self.gain.likely is None else self.samples_per_second * self.gain.likely


class Oracle:
    """Answers from one or several recordings of one job, each with its network (None: not known)."""

    def __init__(self, recordings: Sequence[tuple[Recording, Network | None]]) -> None:
        known = [(one, network_of(one) if network is None else network) for one, network in recordings]
        self.recording = known[0][0]
        self.fit: Fit = fit(known)
        self.error = max(LEAST_ERROR, hypot(self.fit.spread, _left_out(self.fit)))
        self._recordings = [one for one, _ in known]
        self._networks = {self.fit.network, *(network for _, network in known if network is not None)}
        self._gains: dict[str, GainModel] = {}

    def scenario(self) -> Scenario:
        """As it was recorded."""
        return Scenario(
            network=self.fit.network, ranks=self.recording.ranks, compressor=self.recording.spec.compressor
        )

    def at(self, scenario: Scenario, cf: float) -> Foretold:
        """A step at ``cf``. Raises ``UnknownSizes`` for what no cost model tells and the trace did not send."""
        told = self._volume(scenario, cf)
        step = self.fit.model.step(cf, told, scenario.network)
        off = self._error(scenario, step)
        return Foretold(
            cf=cf,
            step=step,
            low=step.seconds / (1 + 2 * off),
            high=step.seconds * (1 + 2 * off),
            volume=told,
            gain=self.gains(scenario.compressor).at(cf),
            samples_per_second=scenario.ranks * self.recording.samples_per_step / step.seconds,
        )

    def _volume(self, scenario: Scenario, cf: float) -> Volume:
        own = scenario.compressor == self.recording.spec.compressor
        try:
            told = volume(scenario.compressor, self.recording.elements, cf, scenario.ranks, scenario.network)
        except UnknownSizes:
            sent = [each.seen.payload_bytes for each in self.fit.samples if own and each.seen.cf == cf]
            if not sent:
                raise
            return exchange.rounds(median(sent), scenario.ranks)
        return self._as_seen(told, cf) if own else told

    def _as_seen(self, told: Volume, cf: float) -> Volume:
        """With payloads as much larger or smaller than expected as they were at the nearest CF that was recorded."""
        alike = [
            one for one in self.fit.samples if (one.seen.cf > 1.0) == (cf > 1.0) and one.expected_bytes > 0
        ]
        if not alike:
            return told
        near = min(alike, key=lambda one: abs(log2(one.seen.cf / cf)))
        share = near.seen.payload_bytes / near.expected_bytes
        return replace(told, link_bytes=told.link_bytes * share, payload_bytes=told.payload_bytes * share)

    def gains(self, compressor: str) -> GainModel:
        """What each CF keeps, by that codec."""
        if compressor not in self._gains:
            same = compressor == self.recording.spec.compressor
            self._gains[compressor] = GainModel.of(
                _joined(self._recordings), same, exchange.keeps_largest(compressor)
            )
        return self._gains[compressor]

    def cannot_know(self, scenario: Scenario, cfs: Sequence[float]) -> list[str]:
        """What this trace does not tell of that scenario, a sentence each."""
        found = list(self.fit.unknown)
        recorded, model = self.recording.spec.compressor, self.gains(scenario.compressor)
        if scenario.compressor != recorded:
            found.append(
                f"compressor {scenario.compressor}: its encoding and decoding are taken to cost what {recorded}'s do"
            )
            found.append(
                "its gain is that of the largest elements, with the residuals of the recorded run"
                if model.curves
                else f"its gain: a run by {recorded} does not show what another codec keeps, so there is no T_comp"
            )
        blind = [f"{cf:g}" for cf in cfs if model.at(cf).likely is None]
        if blind and scenario.compressor == recorded:
            found.append(f"the gain at CF {', '.join(blind)}: not sent, and no curve of the trace covers it")
        far = [f"{cf:g}" for cf in cfs if cf > 1 and cf not in model.sent and model.at(cf).likely is not None]
        if far:
            found.append(
                f"the gain at CF {', '.join(far)} for certain, as it was not sent: what a CF keeps depends on the "
                "residual that it leaves behind itself"
            )
        ways = {self.at(scenario, cf).volume.way: None for cf in cfs}
        parts = [way for way in ways if way in COLLECTIVES and not COLLECTIVES[way].whole]
        if parts:
            found.append(
                f"what {' and '.join(parts)} leave out: such a step sends less than the codec chose, and the gains are "
                "of all that it chose"
            )
        if scenario.ranks != self.recording.ranks:
            found.append(
                f"what other than {self.recording.ranks} ranks change: gradients of more ranks are less noisy "
                "together, and the slowest of more ranks is slower; gains and waiting are those recorded"
            )
        return found

    def _error(self, scenario: Scenario, step: StepTime) -> float:
        """Standard error of a step's time, relative."""
        moved = (
            ELSEWHERE_ERROR * step.exposed / step.seconds if scenario.network not in self._networks else 0.0
        )
        more = DOUBLING_ERROR * abs(log2(scenario.ranks / self.recording.ranks))
        return hypot(self.error, moved, more)


def best(foretold: Sequence[Foretold], epsilon: float = 0.0) -> Foretold | None:
    """The highest T_comp of those that keep at least ``epsilon``; None where no gain can be told."""
    usable = [
        (each.useful_samples_per_second, each)
        for each in foretold
        if each.useful_samples_per_second is not None
        and (each.cf == 1.0 or (each.gain.likely or 0.0) >= epsilon)
    ]
    return max(usable, key=lambda pair: pair[0])[1] if usable else None


def _left_out(made: Fit) -> float:
    """How far off the model is at a CF it has not seen: the median over CFs, each left out once. 0 where too few."""
    factors = sorted({each.seen.cf for each in made.samples})
    if len(factors) < 3:
        return 0.0
    return median(abs(error) for error in _errors_left_out(made, factors))


def _errors_left_out(made: Fit, factors: Sequence[float]) -> Iterator[float]:
    for factor in factors:
        rest = [each for each in made.samples if each.seen.cf != factor]
        other = fit_samples(rest, made.model.elements)
        yield median(other.error(each) for each in made.samples if each.seen.cf == factor)


def _joined(recordings: Sequence[Recording]) -> Recording:
    """Gains and curves of all of them."""
    first = recordings[0]
    if len(recordings) == 1:
        return first
    joined = replace(first, gains={}, curves={})
    for each in recordings:
        for cf, gains in each.gains.items():
            joined.gains[cf] = deque([*joined.gains.get(cf, ()), *gains])
        for cf, curves in each.curves.items():
            joined.curves[cf] = deque([*joined.curves.get(cf, ()), *curves])
    return joined
