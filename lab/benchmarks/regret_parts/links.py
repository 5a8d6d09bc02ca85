"""Links, and the computation of a step of each task."""

from dataclasses import dataclass

from gravac.collectives import Network
from gravac.predict.nominal import LATENCY_SECONDS, link


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
"""By task and ranks: ``gravac_lab.simulate.clock.measure_compute`` on one core of an AMD EPYC, 2026-11-22, rounded.
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
