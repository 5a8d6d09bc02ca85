"""What the routes share: the jobs, the streams, the settings, and the counts of requests."""

import secrets
from collections import Counter
from dataclasses import dataclass, field

from gravac_controller.api.stream import Streams
from gravac_controller.jobs.store import Store
from gravac_controller.metrics.traffic import Traffic
from gravac_controller.settings import ControllerSettings


@dataclass
class Services:
    """One controller. ``instance`` changes with every start, so that a probe knows whom it talks to."""

    settings: ControllerSettings
    store: Store
    streams: Streams
    refused: Counter[str] = field(default_factory=Counter)
    traffic: Traffic = field(default_factory=Traffic)
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, settings: ControllerSettings) -> "Services":
        """A controller with these settings; its store is still closed."""
        return cls(settings, Store(settings), Streams(settings))

    def refuse(self, reason: str) -> None:
        """Count a refused request."""
        self.refused[reason] += 1
