"""Samples that a time model is fitted to: observations of a trace with the volume of the exchange behind each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gravac.collectives import Network
from gravac.predict.exchange import UnknownSizes, Volume, buckets
from gravac.predict.recording import Observation, Recording
from gravac.predict.robust import MAD_OF_A_NORMAL
from gravac.predict.timemodel import TCP_GOODPUT

ASSUMED_NETWORK = Network(latency_seconds=5e-5, bytes_per_second=1.25e8)
"""Stands for an unknown network: gives its latency and the collective that was chosen. Its bandwidth is fitted."""
USUAL_NOISE = 0.02
"""Relative standard error of a CF's median where there are too few windows to measure it."""
MAX_WEIGHT = 30.0
"""Steps of a CF that count. With more, noise is below what the formula leaves out."""


@dataclass(frozen=True, slots=True)
class Sample:
    """An observation with its exchange.

    Attributes:
        observation: What the trace shows.
        volume: Messages and bytes of a step, scaled to the payload that was really handed over.
        network: Network on which it was recorded; None: unknown, at least its bandwidth.
        weight: Weight in the fit: settled steps.
        expected_bytes: Payload that the cost model expects.
        assumed: Network that stands for an unknown one, but for the bandwidth.
    """

    observation: Observation
    volume: Volume
    network: Network | None
    weight: float
    expected_bytes: float
    assumed: Network = ASSUMED_NETWORK

    @property
    def cf(self) -> float:
        """CF that was sent; 1 is dense."""
        return self.observation.cf


def tells_network(recording: Recording) -> bool:
    """Return whether it is known how long other bytes than those that were sent take.

    Where the trace names no network and all steps sent the same amount, waiting for late ranks looks like transfer.
    """
    return network_of(recording) is not None or len(recording.by_cf) > 1


def network_of(recording: Recording) -> Network | None:
    """Return the network a trace was recorded on, with a link's nominal rate; None where its steps tell the bandwidth.

    Steps that sent several amounts do, and better than what was measured at the start. Where all sent the same, they
    tell nothing, and it is the network of the start. An emulated link is known in any case.
    """
    link = recording.spec.link
    if link is not None:
        return _nominal(
            Network(latency_seconds=link.latency_seconds, bytes_per_second=link.bits_per_second / 8)
        )
    return measured_network(recording) if len(recording.by_cf) <= 1 else None


def measured_network(recording: Recording) -> Network | None:
    """Return the network that was measured at the start, with a link's nominal rate; None where the trace does not say.

    With two levels of links it is a rank's share of the link between hosts.
    """
    hosts, found = recording.spec.hosts, recording.spec.network
    if hosts is not None:
        latency, rate = hosts.between_latency_seconds, hosts.between_bytes_per_second
        return _nominal(Network(latency_seconds=latency, bytes_per_second=rate))
    return None if found is None else _nominal(Network(**found.model_dump()))


def _nominal(network: Network) -> Network:
    return replace(network, bytes_per_second=network.bytes_per_second / TCP_GOODPUT)


def samples_of(recording: Recording, network: Network | None) -> list[Sample]:
    """Return the observations of ``recording``, each with its volume on ``network`` (None: unknown)."""
    spec, ranks, elements, levels = recording.spec, recording.ranks, recording.elements, recording.levels
    assumed = network or measured_network(recording) or ASSUMED_NETWORK
    found = []
    for observation in recording.observations:
        sent = expected = observation.payload_bytes
        try:
            codec = observation.codec or spec.compressor
            sized = levels.volume(codec, elements, observation.cf, ranks, assumed, spec.aged)
            expected = sized.payload_bytes
            scale = sent / expected if expected else 1.0
            sized = replace(sized, link_bytes=sized.link_bytes * scale, payload_bytes=sent)
        except UnknownSizes:
            sized = levels.volume_of_rounds(sent, elements, ranks)
        if spec.link is not None:  # an emulated link charges its latency once a bucket
            sized = replace(sized, messages=float(len(buckets(elements))))
        found.append(Sample(observation, sized, network, float(observation.settled_steps), expected, assumed))
    return found


def medians(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield one sample for each plan and network: the medians of its samples."""
    groups: dict[tuple[float, str | None, Network | None], list[Sample]] = {}
    for each in samples:
        groups.setdefault((each.cf, each.observation.codec, each.network), []).append(each)
    for group in groups.values():
        first, observations = group[0], [each.observation for each in group]
        observation = replace(
            first.observation,
            seconds=median(one.seconds for one in observations),
            exposed_seconds=median(one.exposed_seconds for one in observations),
            payload_bytes=median(one.payload_bytes for one in observations),
            compress_seconds=_median_of_known(one.compress_seconds for one in observations),
            decompress_seconds=_median_of_known(one.decompress_seconds for one in observations),
        )
        scale = observation.payload_bytes / first.volume.payload_bytes if first.volume.payload_bytes else 1.0
        scaled = replace(
            first.volume,
            link_bytes=first.volume.link_bytes * scale,
            payload_bytes=observation.payload_bytes,
        )
        weight = min(MAX_WEIGHT, sum(each.weight for each in group))
        yield Sample(observation, scaled, first.network, weight, first.expected_bytes, first.assumed)


def noise_of(samples: Sequence[Sample]) -> float:
    """Return the relative standard error of a group's median: the median over groups of at least three windows."""
    groups: dict[tuple[float, str | None, Network | None], list[float]] = {}
    for sample in samples:
        key = (sample.cf, sample.observation.codec, sample.network)
        groups.setdefault(key, []).append(sample.observation.seconds)
    found = []
    for seconds in groups.values():
        middle = median(seconds)
        if len(seconds) >= 3:
            deviation = median(abs(one / middle - 1) for one in seconds) / MAD_OF_A_NORMAL
            found.append(deviation / len(seconds) ** 0.5)
    return median(found) if found else USUAL_NOISE


def _median_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
