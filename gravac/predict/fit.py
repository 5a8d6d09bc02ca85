"""Fitting a ``TimeModel`` to traces. Where they do not determine a term, a default is used and the result says so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from gravac.collectives import Network
from gravac.predict.recording import Recording
from gravac.predict.robust import MAD_OF_A_NORMAL
from gravac.predict.samples import Sample, medians, noise_of, samples_of
from gravac.predict.terms import coding_terms, exchange_terms
from gravac.predict.timemodel import TimeModel


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        model: The time model.
        network: Network on which the traces were recorded (the first of several), as stated or fitted.
        spread: Standard deviation of steps from the model, relative.
        unknown: What the traces do not determine, and what was assumed instead, in a sentence each.
        samples: What the model was fitted to.
    """

    model: TimeModel
    network: Network
    spread: float
    unknown: tuple[str, ...]
    samples: tuple[Sample, ...]

    def error(self, sample: Sample) -> float:
        """Return measured over predicted seconds, less 1."""
        step = self.model.step(sample.cf, sample.volume, sample.network or self.network)
        return sample.observation.seconds / step.seconds - 1


def fit(recordings: Sequence[tuple[Recording, Network | None]]) -> Fit:
    """Fit one model to recordings of the same job.

    Args:
        recordings: Recordings, each with its network. A single one may have None, an unknown network, whose bandwidth
            is fitted.

    Raises:
        ValueError: The jobs differ, or the network of one of several recordings is unknown.
    """
    first = recordings[0][0]
    for other, _ in recordings[1:]:
        if (other.elements, other.spec.compressor) != (first.elements, first.spec.compressor):
            raise ValueError(
                f"traces of {first.elements:,} elements by {first.spec.compressor!r} and of {other.elements:,} by "
                f"{other.spec.compressor!r} cannot share a model: give traces of one job"
            )
    if len(recordings) > 1 and any(network is None for _, network in recordings):
        raise ValueError("with several traces, say for each on which network it was recorded")
    samples = [sample for recording, network in recordings for sample in samples_of(recording, network)]
    return fit_samples(samples, first.levels.elements(first.elements))


def fit_samples(samples: Sequence[Sample], elements: int) -> Fit:
    """Fit a model to at least one sample of ranks that compress ``elements`` elements each."""
    groups = list(medians(samples))
    coding = coding_terms(groups, elements)
    exchange = exchange_terms(groups, coding, elements, noise_of(samples))
    model = TimeModel(
        elements=elements,
        compute_seconds=exchange.compute_seconds,
        compress_seconds=coding.compress_seconds,
        compress_seconds_per_coded=coding.compress_seconds_per_coded,
        decompress_seconds_per_coded=coding.decompress_seconds_per_coded,
        waiting_seconds=exchange.waiting_seconds,
        goodput_ratio=exchange.goodput_ratio,
        handling_seconds_per_byte=exchange.handling_seconds_per_byte,
        last_ratio=exchange.last_ratio,
        hidden_seconds=exchange.hidden_seconds,
    )
    fitted = Fit(model, exchange.network, 0.0, (*coding.unknown, *exchange.unknown), tuple(samples))
    errors = [abs(fitted.error(sample)) for sample in samples]
    return replace(fitted, spread=median(errors) / MAD_OF_A_NORMAL)
