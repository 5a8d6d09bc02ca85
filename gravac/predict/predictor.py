"""Predictions: what a step would take, and be worth, on another network, with more ranks, by another codec or CF."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot, log2
from statistics import median

from gravac import offers
from gravac.collectives import COLLECTIVES, Network
from gravac.predict import exchange
from gravac.predict.exchange import UnknownSizes, Volume
from gravac.predict.fit import Fit, fit, fit_samples
from gravac.predict.gains import GainEstimate, GainModel
from gravac.predict.nominal import NominalJob
from gravac.predict.recording import Recording
from gravac.predict.samples import Sample, measured_network, network_of
from gravac.predict.timemodel import StepTime
from gravac.protocol import PlanCost
from gravac.signals.efficiency import CERTAIN, Efficiency, of_job

MIN_ERROR = 0.02
"""Relative standard error of any predicted step, at least."""
ELSEWHERE_ERROR = 0.05
"""Relative error of the exposed time on a network that the model was not fitted on: goodput and handling differ."""
DOUBLING_ERROR = 0.05
"""Relative error of the step for each doubling of the ranks: the slowest of more ranks is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The place and way of a training.

    Attributes:
        network: The network; with two levels of links, a rank's share of the link between hosts.
        ranks: World size.
        compressor: Codec of what is sent.
        aged: Whether every optimizer is of ``gravac.optim``, as ``JobSpec.aged``.
    """

    network: Network
    ranks: int
    compressor: str
    aged: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction for one CF in one scenario.

    Attributes:
        codec: Codec of the scenario; it does not matter at CF 1.
        cf: Compression factor; 1 is dense.
        step: Predicted time of a step, by part.
        low: Lower end of the prediction interval of the step, in seconds: two standard errors.
        high: Upper end.
        volume: Exchange of a step.
        gain: Predicted gain.
        efficiency: Predicted statistical efficiency η; None where nothing is known of the codec.
        samples_per_second: T_sys, of all ranks.
    """

    codec: str
    cf: float
    step: StepTime
    low: float
    high: float
    volume: Volume
    gain: GainEstimate
    efficiency: Efficiency | None
    samples_per_second: float

    @property
    def useful_samples_per_second(self) -> float | None:
        """Useful throughput T_sys · η; None where η cannot be predicted."""
        return None if self.efficiency is None else self.samples_per_second * self.efficiency.likely

    @property
    def compression_throughput(self) -> float | None:
        """GraVAC's T_comp = T_sys · gain; None where the gain cannot be predicted."""
        return None if self.gain.likely is None else self.samples_per_second * self.gain.likely


class Predictor:
    """Predicts steps and gains from recordings of one job.

    Args:
        recordings: Recordings, each with the network it was recorded on; None: as the trace says, or fitted.

    Attributes:
        recording: The first one.
        fit: The time model.
        error: Relative standard error of a predicted step in the recorded scenario.

    Raises:
        ValueError: The recordings do not fit together (see ``gravac.predict.fit.fit``).
    """

    def __init__(self, recordings: Sequence[tuple[Recording, Network | None]]) -> None:
        # Of several, only one network could be fitted.
        found = network_of if len(recordings) == 1 else lambda one: network_of(one) or measured_network(one)
        known = [(one, found(one) if network is None else network) for one, network in recordings]
        self.recording = known[0][0]
        self.fit: Fit = fit(known)
        self.error = max(MIN_ERROR, hypot(self.fit.spread, _error_of_unseen_cfs(self.fit)))
        self._recordings = [one for one, _ in known]
        self._networks = {self.fit.network, *(network for _, network in known if network is not None)}
        self._gains: dict[str, GainModel] = {}

    def scenario(self) -> Scenario:
        """Return the scenario that was recorded."""
        return Scenario(
            network=self.fit.network,
            ranks=self.recording.ranks,
            compressor=self.recording.spec.compressor,
            aged=self.recording.spec.aged,
        )

    def predict(self, scenario: Scenario, cf: float) -> Prediction:
        """Predict a step at ``cf``.

        Raises:
            UnknownSizes: The compressor is a multi-round aggregator, and the trace did not send this CF.
            ValueError: The ranks do not fill hosts, among whose ranks the job divides gradients.
        """
        exchanged = self._volume(scenario, cf)
        step = self._step(scenario, cf, exchanged)
        error = self._error(scenario, step)
        return Prediction(
            codec=scenario.compressor,
            cf=cf,
            step=step,
            low=step.seconds / (1 + 2 * error),
            high=step.seconds * (1 + 2 * error),
            volume=exchanged,
            gain=self.gains(scenario.compressor).at(cf),
            efficiency=self.efficiency(scenario.compressor, cf, scenario.ranks),
            samples_per_second=scenario.ranks * self.recording.samples_per_step / step.seconds,
        )

    def _step(self, scenario: Scenario, cf: float, exchanged: Volume) -> StepTime:
        """Return a step. Of a codec that was not sent, coding takes what it took when the job started, if known."""
        model, cost = self.fit.model, self.coded_at_start(scenario.compressor, cf)
        if cost is None:
            return model.step(cf, exchanged, scenario.network)
        recorded = exchanged if cost.decoded is None else replace(exchanged, decoded=cost.decoded)
        nominal = NominalJob(model.elements, scenario.ranks, 0.0)
        then, now = (
            nominal.step(scenario.compressor, cf, scenario.network, exchange=each)
            for each in (recorded, exchanged)
        )
        took = max(cost.coding_seconds or 0.0, cost.host_seconds or 0.0) / (then.compress + then.decompress)
        model = replace(model, compress_seconds=took * now.compress, compress_seconds_per_coded=0.0)
        return replace(model.step(cf, exchanged, scenario.network), decompress=took * now.decompress)

    def coded_at_start(self, compressor: str, cf: float) -> PlanCost | None:
        """Return the cost of a plan whose codec was not sent, and that the job measured when it started; None: another.

        Args:
            compressor: Name of the codec.
            cf: CF of the plan.
        """
        spec = self.recording.spec
        if cf == 1.0 or any(sample.cf > 1.0 for sample in self._sent(compressor)):
            return None
        measured = (cost for cost in spec.plans if cost.host_seconds is not None)
        return next(
            (cost for cost in measured if (cost.codec or spec.compressor, cost.cf) == (compressor, cf)), None
        )

    def _volume(self, scenario: Scenario, cf: float) -> Volume:
        levels, elements = self.recording.levels, self.recording.elements
        try:
            sized = levels.volume(
                scenario.compressor, elements, cf, scenario.ranks, scenario.network, scenario.aged
            )
        except UnknownSizes:
            sent = [
                each.observation.payload_bytes for each in self._sent(scenario.compressor) if each.cf == cf
            ]
            if not sent:
                raise
            return levels.volume_of_rounds(median(sent), elements, scenario.ranks)
        return self._as_measured(sized, scenario.compressor, cf)

    def _sent(self, compressor: str) -> list[Sample]:
        """Return the samples of this compressor."""
        own = self.recording.spec.compressor
        return [sample for sample in self.fit.samples if (sample.observation.codec or own) == compressor]

    def _as_measured(self, sized: Volume, compressor: str, cf: float) -> Volume:
        """Scale a volume by measured over expected payload at the compressor's nearest CF that was recorded."""
        sent = self._sent(compressor)
        alike = [one for one in sent if (one.cf > 1.0) == (cf > 1.0) and one.expected_bytes > 0]
        if not alike:
            return sized
        near = min(alike, key=lambda one: abs(log2(one.cf / cf)))
        scale = near.observation.payload_bytes / near.expected_bytes
        return replace(sized, link_bytes=sized.link_bytes * scale, payload_bytes=sized.payload_bytes * scale)

    def gains(self, compressor: str) -> GainModel:
        """Return the gain model of that compressor."""
        if compressor not in self._gains:
            self._gains[compressor] = GainModel.of(
                _joined(self._recordings), compressor, exchange.keeps_largest(compressor)
            )
        return self._gains[compressor]

    def efficiency(self, compressor: str, cf: float, ranks: int) -> Efficiency | None:
        """Return η of a plan: as simulated, or for a codec that was not, as the recording showed it (median window)."""
        spec = self.recording.spec
        if cf == 1.0:
            return CERTAIN
        hosts = self.recording.levels.hosts(ranks)
        if spec.memory.partition(":")[0] != "none" or offers.of(compressor).lossless:
            simulated = of_job(compressor, cf, spec.optimizer_kind, hosts, self.recording.confirmed)
            if simulated is not None:
                return simulated
        shown = sorted(self.recording.efficiencies.get((compressor, cf), ()), key=lambda each: each.likely)
        return shown[len(shown) // 2] if shown else None

    def unknowns(self, places: Sequence[tuple[Scenario, Sequence[float]]], gains: bool = True) -> list[str]:
        """List what the trace does not show about plans, and what was assumed, in a sentence each.

        Args:
            places: Codecs in one network with as many ranks, each with the CFs that are predicted.
            gains: Whether gains count: say what is not known of them, too.
        """
        found, sent = list(self.fit.unknown), {codec for codec, cf in self.recording.sent if cf > 1.0}
        if any(
            codec not in sent and cf > 1.0 and self.coded_at_start(codec, cf) is None
            for codec, cf in ((scenario.compressor, cf) for scenario, cfs in places for cf in cfs)
        ):
            found.append(f"encoding and decoding of codecs that were not sent: as {self.recording.codec}'s")
        dark = {
            scenario.compressor: blind
            for scenario, cfs in places
            if (
                blind := [
                    cf for cf in cfs if self.efficiency(scenario.compressor, cf, scenario.ranks) is None
                ]
            )
        }
        for codec, cfs in dark.items():
            found.append(
                f"the statistical efficiency of {codec} at CF {_listed(cfs)}: neither simulated nor recorded, so the "
                "useful throughput is unknown"
            )
        if not dark and self.recording.spec.optimizer is None:
            found.append("the optimizer: statistical efficiencies are those of one like Adam")
        if gains:
            found += [
                text for scenario, cfs in places for text in self._unknown_gains(scenario.compressor, cfs)
            ]
        collectives = {
            self.predict(scenario, cf).volume.collective: None for scenario, cfs in places for cf in cfs
        }
        lossy = [name for name in collectives if name in COLLECTIVES and not COLLECTIVES[name].sends_all]
        if lossy:
            found.append(
                f"what a step by {' or '.join(lossy)} leaves out: it sends less than the codec chose, and the gains "
                "count all that it chose"
            )
        if places[0][0].ranks != self.recording.ranks:
            found.append(
                f"the effect of other than {self.recording.ranks} ranks: the mean gradient of more ranks is less "
                "noisy, and the slowest of more ranks is slower; gains and waiting are as recorded"
            )
        return found

    def _unknown_gains(self, codec: str, cfs: Sequence[float]) -> Iterator[str]:
        """Say what is not known of the gains of a codec."""
        model = self.gains(codec)
        if not model.sent and max(cfs) > 1.0:
            yield (
                f"the gain of {codec} is that of the largest elements, with the recorded run's residuals"
                if model.curves
                else f"the gain of {codec}: a run by {self.recording.codec} does not show what another codec keeps"
            )
        elif blind := [cf for cf in cfs if model.at(cf).likely is None]:
            yield f"the gain at CF {_listed(blind)}: not sent, and no gain curve of the trace covers it"
        far = [cf for cf in cfs if cf > 1 and cf not in model.sent and model.at(cf).likely is not None]
        if far:
            yield (
                f"the gain at CF {_listed(far)} is an estimate, as it was not sent: a gain depends on the residual "
                "that this CF would leave"
            )

    def _error(self, scenario: Scenario, step: StepTime) -> float:
        """Return the relative standard error of a step's time."""
        elsewhere = (
            ELSEWHERE_ERROR * step.exposed / step.seconds if scenario.network not in self._networks else 0.0
        )
        more = DOUBLING_ERROR * abs(log2(scenario.ranks / self.recording.ranks))
        return hypot(self.error, elsewhere, more)


def best(predictions: Sequence[Prediction]) -> Prediction | None:
    """Return the prediction with the highest useful throughput; None if no efficiency is known."""
    usable = [
        (prediction.useful_samples_per_second, prediction)
        for prediction in predictions
        if prediction.useful_samples_per_second is not None
    ]
    return max(usable, key=lambda pair: pair[0])[1] if usable else None


def _listed(cfs: Sequence[float]) -> str:
    return ", ".join(f"{cf:g}" for cf in cfs)


def _error_of_unseen_cfs(fitted: Fit) -> float:
    """Return the model's relative error at a CF it was not fitted on: the median over CFs, each left out once."""
    cfs = sorted({sample.cf for sample in fitted.samples})
    if len(cfs) < 3:
        return 0.0
    return median(abs(error) for error in _errors_left_out(fitted, cfs))


def _errors_left_out(fitted: Fit, cfs: Sequence[float]) -> Iterator[float]:
    for cf in cfs:
        rest = [sample for sample in fitted.samples if sample.cf != cf]
        other = fit_samples(rest, fitted.model.elements)
        yield median(other.error(sample) for sample in fitted.samples if sample.cf == cf)


def _joined(recordings: Sequence[Recording]) -> Recording:
    """Return the first recording with the gains and curves of all of them."""
    first = recordings[0]
    if len(recordings) == 1:
        return first
    joined = replace(first, gains={}, curves={})
    for each in recordings:
        for sent, gains in each.gains.items():
            joined.gains[sent] = deque([*joined.gains.get(sent, ()), *gains])
        for sent, curves in each.curves.items():
            joined.curves[sent] = deque([*joined.curves.get(sent, ()), *curves])
    return joined
