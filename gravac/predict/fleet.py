"""A simulated fleet: window reports of ranks that do not exist, for real policies."""

from dataclasses import replace

from gravac.predict.gains import GainModel
from gravac.predict.predictor import Prediction, Predictor, Scenario
from gravac.protocol import (
    Decision,
    GainCurve,
    GainSums,
    JobSpec,
    LevelSums,
    PhaseSeconds,
    SmoothedGain,
    WindowReport,
)

SETTLE_STEPS = 5


class GainUnknown(ValueError):
    """The policy asks for a CF whose gain the trace does not determine."""


class Fleet:
    """All ranks of a job in one scenario. Equal arguments give equal reports.

    Args:
        predictor: Predicts steps and gains.
        scenario: Scenario to train in.
        spec: The job.
    """

    def __init__(self, predictor: Predictor, scenario: Scenario, spec: JobSpec) -> None:
        self.spec = spec
        self._predictor, self._scenario = predictor, scenario
        self._model: GainModel = predictor.gains(scenario.compressor)
        self._predictions: dict[tuple[str | None, float], Prediction] = {}

    def predict(self, cf: float, codec: str | None = None) -> Prediction:
        """Predict a step at ``cf`` with ``codec``; None: the scenario's compressor."""
        if (codec, cf) not in self._predictions:
            compressor = self._scenario.compressor if codec is None else codec
            scenario = replace(self._scenario, compressor=compressor)
            self._predictions[codec, cf] = self._predictor.predict(scenario, cf)
        return self._predictions[codec, cf]

    def gain(self, cf: float, decision: Decision) -> float:
        """Return the gain of ``cf`` with the codec of a decision; 1 where it is not known and the gate does not ask.

        Raises:
            GainUnknown: The trace does not determine it.
        """
        estimate = self.predict(cf, decision.codec).gain
        if estimate.likely is not None:
            return estimate.likely
        if decision.epsilon > 0.0:
            raise GainUnknown(f"the policy asks for CF {cf:g}, whose gain is unknown: {estimate.why}")
        return 1.0

    def sent(self, decision: Decision) -> float:
        """Return the CF that the ranks' gate lets through."""
        for cf in (decision.cf_candidate, decision.cf_minimum):
            if cf > 1.0 and self.gain(cf, decision) >= decision.epsilon:
                return cf
        return 1.0

    def report(self, window: int, decision: Decision) -> WindowReport:
        """Return the report of a window under ``decision``. Its sums give the gain, but no backlog.

        It lists no ranks.
        """
        cf, steps, ranks = self.sent(decision), self.spec.window_steps, self._scenario.ranks
        predicted = self.predict(cf, decision.codec)
        seconds = steps * predicted.step.seconds
        measured = sorted({decision.cf_minimum, decision.cf_candidate} - {1.0})
        samples = round(steps * ranks * self._predictor.recording.samples_per_step)
        dense = 4 * self._predictor.fit.model.elements * steps * ranks
        payload = dense if cf == 1.0 else round(predicted.volume.payload_bytes * steps * ranks)
        return WindowReport(
            job=self.spec.job,
            incarnation=self.spec.incarnation,
            window=window,
            first_step=window * steps,
            last_step=(window + 1) * steps - 1,
            epoch=decision.epoch,
            phase=decision.phase,
            cf=cf,
            seconds=seconds,
            samples=samples,
            dense_bytes=dense,
            payload_bytes=payload,
            loss=None,
            nonfinite_steps=0,
            failed_steps=0,
            levels=(self._level(decision, predicted, dense, payload),),
            gains=tuple(SmoothedGain(cf=one, gain=self.gain(one, decision)) for one in measured),
            phases=_phases(predicted, steps),
            ranks=(),
            curve=self._curve(cf),
        )

    def _level(self, decision: Decision, predicted: Prediction, dense: int, payload: int) -> LevelSums:
        steps = self.spec.window_steps
        energy = float(steps * self._scenario.ranks)
        sent = energy * self.gain(predicted.cf, decision)
        sums = GainSums(
            steps=steps,
            gradient_sq=energy,
            compensated_sq=energy,
            sent_sq=sent,
            minimum_sq=energy * self.gain(decision.cf_minimum, decision),
            candidate_sq=energy * self.gain(decision.cf_candidate, decision),
            residual_sq=energy - sent,
            residual_dot_gradient=0.0,
        )
        return LevelSums(
            epoch=decision.epoch,
            cf=predicted.cf,
            steps=steps,
            settled_steps=max(1, steps - SETTLE_STEPS),
            step_seconds_median=predicted.step.seconds,
            exposed_seconds_median=predicted.step.exposed,
            dense_bytes=dense,
            payload_bytes=payload,
            sums=sums,
            codec=decision.codec if predicted.cf > 1.0 else None,
        )

    def _curve(self, cf: float) -> GainCurve | None:
        """Return the curve of the nearest CF at which one was measured."""
        if not self._model.curves:
            return None
        near = min(self._model.curves, key=lambda base: max(cf / base, base / cf))
        gains = tuple(None if gain is None else min(1.0, gain) for gain in self._model.curves[near])
        return GainCurve(steps=3, own=True, gains=gains)


def _phases(predicted: Prediction, steps: int) -> PhaseSeconds:
    return PhaseSeconds(
        data_wait=0.0,
        compute=steps * predicted.step.compute,
        compress=steps * predicted.step.compress,
        communicate=steps * predicted.step.exposed,
        decompress=steps * predicted.step.decompress,
    )
