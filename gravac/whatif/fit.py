"""Fitting a ``TimeModel`` to traces. What they cannot tell is taken from defaults, and said."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gravac.collectives import Network
from gravac.whatif import fit_coding, fit_step
from gravac.whatif.exchange import UnknownSizes, Volume, buckets, rounds, volume
from gravac.whatif.fit_step import ASSUMED
from gravac.whatif.recording import Observation, Recording
from gravac.whatif.timemodel import TCP_GOODPUT, TimeModel

USUAL_NOISE = 0.02
"""Standard error of a CF's median where it has too few windows to tell, relative."""
MOST_WEIGHT = 30.0
"""Steps of a CF that count: beyond them its noise is less than what the formula leaves out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An observation with what was exchanged in it, and where. ``network`` None: not known."""

    seen: Observation
    volume: Volume
    network: Network | None
    weight: float
    expected_bytes: float
    """What the cost model says of the payload."""


@dataclass(frozen=True)
class Fit:
    """``spread``: how far steps lie from the model, relative, as a standard deviation. ``unknown``: what could not be
    told, and what was taken instead. ``network``: where the trace was recorded, as far as known or fitted."""

    model: TimeModel
    network: Network
    spread: float
    unknown: tuple[str, ...]
    samples: tuple[Sample, ...]

    def error(self, sample: Sample) -> float:
        """Seen over foretold, less 1."""
        step = self.model.step(sample.seen.cf, sample.volume, sample.network or self.network)
        return sample.seen.seconds / step.seconds - 1


def network_of(recording: Recording) -> Network | None:
    """The network a trace says it was recorded on, as a link's nominal rate; None where it does not say."""
    link = recording.spec.link
    if link is not None:
        delay, rate = link.latency_seconds, link.bits_per_second / 8
    elif recording.measured is not None and recording.measured[1] > 0:
        delay, rate = recording.measured
    else:
        return None
    return Network(latency_seconds=delay, bytes_per_second=rate / TCP_GOODPUT)


def samples(recording: Recording, network: Network | None) -> list[Sample]:
    """What was seen, with the volumes of the cost model, scaled to the payloads that were really handed over."""
    spec, ranks, found = recording.spec, recording.ranks, []
    for seen in recording.observations:
        sent = expected = seen.payload_bytes
        try:
            told = volume(spec.compressor, recording.elements, seen.cf, ranks, network or ASSUMED)
            expected = told.payload_bytes
            scale = sent / expected if expected else 1.0
            told = replace(told, link_bytes=told.link_bytes * scale, payload_bytes=sent)
        except UnknownSizes:
            told = rounds(sent, ranks)
        if spec.link is not None:  # an emulated one charges its latency once a bucket
            told = replace(told, messages=float(len(buckets(recording.elements))))
        found.append(Sample(seen, told, network, float(seen.settled_steps), expected))
    return found


def fit(recordings: Sequence[tuple[Recording, Network | None]]) -> Fit:
    """One model of the same job on one or several networks, each None where it is not known (its bandwidth is then
    fitted, which takes that there is one only). Raises ValueError when the jobs differ."""
    first = recordings[0][0]
    for other, _ in recordings[1:]:
        if (other.elements, other.spec.compressor) != (first.elements, first.spec.compressor):
            raise ValueError(
                f"traces of {first.elements:,} elements by {first.spec.compressor!r} and of {other.elements:,} by "
                f"{other.spec.compressor!r} make no one model: give traces of one job"
            )
    if len(recordings) > 1 and any(network is None for _, network in recordings):
        raise ValueError("of several traces, say for each on which network it was recorded")
    every = [sample for recording, network in recordings for sample in samples(recording, network)]
    return fit_samples(every, first.elements)


def fit_samples(every: Sequence[Sample], elements: int) -> Fit:
    """The model of these samples, which must be at least one."""
    groups = list(grouped(every))
    coding = fit_coding.fit(groups, elements)
    steps = fit_step.fit(groups, coding, elements, _noise(every))
    model = TimeModel(
        elements=elements,
        compute_seconds=steps.compute_seconds,
        compress_seconds=coding.compress_seconds,
        compress_seconds_per_coded=coding.compress_seconds_per_coded,
        decompress_seconds_per_coded=coding.decompress_seconds_per_coded,
        waiting_seconds=steps.waiting_seconds,
        goodput_ratio=steps.goodput_ratio,
        handling_seconds_per_byte=steps.handling_seconds_per_byte,
        last_ratio=steps.last_ratio,
        hidden_seconds=steps.hidden_seconds,
    )
    made = Fit(model, steps.network, 0.0, (*coding.unknown, *steps.unknown), tuple(every))
    errors = [abs(made.error(sample)) for sample in every]
    return replace(made, spread=median(errors) / 0.6745)


def grouped(every: Sequence[Sample]) -> Iterator[Sample]:
    """The medians of all samples of one CF on one network, as one sample."""
    groups: dict[tuple[float, Network | None], list[Sample]] = {}
    for each in every:
        groups.setdefault((each.seen.cf, each.network), []).append(each)
    for group in groups.values():
        every_seen = [each.seen for each in group]
        seen = replace(
            group[0].seen,
            seconds=median(one.seconds for one in every_seen),
            exposed_seconds=median(one.exposed_seconds for one in every_seen),
            payload_bytes=median(one.payload_bytes for one in every_seen),
            compress_seconds=_median(one.compress_seconds for one in every_seen),
            decompress_seconds=_median(one.decompress_seconds for one in every_seen),
        )
        sent = seen.payload_bytes / group[0].volume.payload_bytes if group[0].volume.payload_bytes else 1.0
        told = replace(
            group[0].volume,
            link_bytes=group[0].volume.link_bytes * sent,
            payload_bytes=seen.payload_bytes,
        )
        weight = min(MOST_WEIGHT, sum(each.weight for each in group))
        yield Sample(seen, told, group[0].network, weight, group[0].expected_bytes)


def _noise(every: Sequence[Sample]) -> float:
    """Standard error of the median of a group, relative: the median over groups of three windows and more."""
    groups: dict[tuple[float, Network | None], list[float]] = {}
    for each in every:
        groups.setdefault((each.seen.cf, each.network), []).append(each.seen.seconds)
    found = []
    for seconds in groups.values():
        middle = median(seconds)
        if len(seconds) >= 3:
            found.append(median(abs(one / middle - 1) for one in seconds) / 0.6745 / len(seconds) ** 0.5)
    return median(found) if found else USUAL_NOISE


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
