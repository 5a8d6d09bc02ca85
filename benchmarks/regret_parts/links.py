"""Links, computation of a step, and the step times of static plans that follow."""

from dataclasses import dataclass

from gravac.aggregators import parse
from gravac.collectives import AUTO, Gather, Network
from gravac.tournament import Run
from gravac.tournament.rows import DENSE
from gravac.whatif.exchange import UnknownSizes, Volume, volume, volume_of_layers
from gravac.whatif.nominal import LATENCY_SECONDS, NominalJob, link

GATHER = Gather.name
COLLECTIVES = (AUTO, GATHER)
"""How payloads of static plans that cannot be summed are exchanged. ``auto`` is what agents do: quicker on slow links
with many ranks, but it may compress sums a second time, whose loss no row has, so it flatters static plans. The rows
were learned with ``gather``."""


@dataclass(frozen=True, slots=True)
class Link:
    """A network between the ranks. ``bits_per_second`` is nominal, ``latency_seconds`` of a message."""

    bits_per_second: float
    latency_seconds: float = LATENCY_SECONDS

    @property
    def network(self) -> Network:
        return link(self.bits_per_second, self.latency_seconds)


LINKS = {
    "30mbit": Link(30e6),
    "100mbit": Link(100e6),
    "1gbit": Link(1e9),
    "loopback": Link(20e9, 1e-5),
}
COMPUTE_SECONDS = {
    "logistic": {2: 0.0009, 4: 0.0006, 8: 0.0005},
    "lm": {2: 0.013, 4: 0.0105, 8: 0.008},
    "lm:optimizer=adamw": {2: 0.0165, 4: 0.0115, 8: 0.010},
    "gpt:size=0.3m": {2: 0.026, 4: 0.020, 8: 0.0135},
    "gpt:size=0.3m,optimizer=sgd": {2: 0.022, 4: 0.017, 8: 0.012},
    "resnet": {2: 0.020, 4: 0.014, 8: 0.012},
    "vgg": {2: 0.015, 4: 0.0115, 8: 0.0085},
    "logistic:optimizer=adamw": {2: 0.0013, 4: 0.0009, 8: 0.0008},
    "resnet:optimizer=adamw": {2: 0.022, 4: 0.0155, 8: 0.0135},
    "vgg:optimizer=adamw": {2: 0.0195, 4: 0.015, 8: 0.011},
}
"""By task and ranks: ``gravac_agent.simulate.clock.measure_compute`` on one core of an AMD EPYC, 2026-11-22, rounded.
The machine was busy, so the lowest of several medians counts, of seconds and of CPU seconds. The last three follow from
their tasks under SGD: 1.5, 1.12 and 1.3 times as long, measured side by side on 2026-11-23 (medians over ranks)."""


def compute_seconds(task: str, ranks: int) -> float:
    """Return the computation of a step of one rank.

    Raises:
        KeyError: it was not measured.
    """
    try:
        return COMPUTE_SECONDS[task][ranks]
    except KeyError:
        raise KeyError(
            f"task={task!r}, ranks={ranks}: add --compute SECONDS, as it was not measured"
        ) from None


class GatherJob(NominalJob):
    """A job whose payloads are gathered, as in a tournament, where they cannot be summed."""

    def volume(
        self, compressor: str, cf: float, network: Network, payload_bytes: float | None = None
    ) -> Volume:
        try:
            return volume(compressor, self.elements, cf, self.ranks, network, GATHER)
        except UnknownSizes:
            return super().volume(compressor, cf, network, payload_bytes)


def step_seconds(run: Run, network: Network, compute: float, collective: str = AUTO) -> float:
    """Return the duration of a step of a static plan.

    Args:
        run: of a tournament.
        network: between the ranks.
        compute: seconds of a step of one rank without any exchange.
        collective: one of ``COLLECTIVES``.

    Raises:
        ValueError: the plan names no codec that is known.
    """
    if run.wire_cf is None:  # alone
        return compute
    if (layered := run.layered_codec) is not None:
        exchange = volume_of_layers(layered, run.elements, run.payload_bytes, run.ranks, run.sent_bytes)
        job = NominalJob(run.elements, run.ranks, compute)
        return job.step(layered, max(1.01, run.wire_cf), network, exchange=exchange).seconds
    codec, at, rest = run.plan.rpartition("@")
    cf = float(rest.partition("/")[0]) if at else 1.0
    if cf > 1.0:
        parse(codec)
    elif run.plan != DENSE and not run.repeats_dense:
        raise ValueError(f"plan {run.plan!r} has no strength")
    kind = GatherJob if collective == GATHER else NominalJob
    return kind(run.elements, run.ranks, compute).step(codec, cf, network, run.payload_bytes).seconds
