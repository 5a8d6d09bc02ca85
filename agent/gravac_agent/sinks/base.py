"""What a sink is: a place that people look at, such as Weights & Biases, and what is written there."""

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.signals import figures
from gravac_agent.errors import SetupError

METRICS = {
    "gravac/decision": "gravac_decision_epoch",
    "gravac/cf": "gravac_compression_factor",
    "gravac/wire_cf": "gravac_wire_compression_factor",
    "gravac/gain": "gravac_gain_ratio",
    "gravac/loss": "gravac_loss",
    "gravac/samples_per_second": "gravac_samples_per_second",
    "gravac/useful_samples_per_second": "gravac_useful_samples_per_second",
}
"""Figures and the controller's metric of the same (docs/metrics.md)."""


def figures_of_plan(epoch: int, codec: str, cf: float) -> dict[str, float]:
    """Return the figures of a plan, by name."""
    plan = "dense" if cf == 1.0 else re.sub(r"[^A-Za-z0-9_.-]+", "-", codec)
    # Loggers draw numbers only: a curve for each plan, where it was in force.
    return {"gravac/decision": float(epoch), "gravac/cf": cf, f"gravac/plan/{plan}": cf}


def figures_of_window(report: WindowReport, spec: JobSpec) -> dict[str, float]:
    """Return the figures of a window, by name; unknown ones are missing."""
    compressor = spec.compressor
    known = {
        "gravac/wire_cf": figures.ratio(report.dense_bytes, report.payload_bytes),
        "gravac/gain": figures.gain(report),
        "gravac/loss": report.loss,
        "gravac/samples_per_second": figures.samples_per_second(report),
        "gravac/useful_samples_per_second": figures.useful_samples_per_second(
            report, spec.optimizer_kind, compressor, spec.senders
        ),
    }
    plan = figures_of_plan(report.epoch, figures.codec(report, compressor), report.cf)
    return plan | {name: value for name, value in known.items() if value is not None}


class SinkRow(NamedTuple):
    """What is written together. ``step``: finished steps. ``time``: Unix time. ``page``: the address of the page."""

    step: int
    time: float
    figures: Mapping[str, float] = {}
    decision: Decision | None = None
    page: str | None = None


class Sink(ABC):
    """Writes rows by a client that others made. It is one file, named in ``SINKS``; its settings are texts.

    ``open``, ``write`` and ``close`` run on a thread of their own, and may wait and raise.

    Args:
        own: An object of the client that the program made. It is used, and never ended.
    """

    name: ClassVar[str]
    """Also of the extra that installs the client."""
    client: ClassVar[str]
    """Module of the client."""
    objects: ClassVar[tuple[str, ...]] = ()
    """Classes of ``own``, as package and name."""

    def __init__(self, own: Any = None) -> None:
        self.own = own

    @classmethod
    def takes(cls, thing: object) -> bool:
        """Return whether a thing can be ``own``."""
        kinds = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(thing).__mro__)
        return not set(cls.objects).isdisjoint(kinds)

    def load(self) -> None:
        """Import the client, on the thread that starts the agent. Raises SetupError where it is missing."""
        if self.own is not None:
            return
        try:
            importlib.import_module(self.client)
        except ImportError as error:
            raise SetupError(
                f"sink={self.name!r} needs a package that is not installed ({error}): "
                f"pip install 'gravac[{self.name}]', or leave it out"
            ) from None

    @abstractmethod
    def open(self, spec: JobSpec) -> None:
        """Begin. Called again, later, where it raised."""

    @abstractmethod
    def write(self, rows: Sequence[SinkRow]) -> None:
        """Write at least one row, at most once a second."""

    def close(self) -> None:  # noqa: B027
        """End what ``open`` began."""
