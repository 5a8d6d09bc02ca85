"""What the routes of one controller share: settings, jobs, event streams and metrics."""

import secrets
from collections import Counter
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gravac_controller.api.stream import Streams
from gravac_controller.jobs.store import Store
from gravac_controller.live.projection import LiveJob
from gravac_controller.metrics.service import ServiceMetrics
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import State


@dataclass
class Services:
    """One controller.

    Args:
        settings: How it serves.
        store: Its jobs.
        streams: Its open event streams.
        metrics: Its own metrics.
        instance: Identifies this start of the controller to health checks.
    """

    settings: ControllerSettings
    store: Store
    streams: Streams
    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, settings: ControllerSettings) -> "Services":
        """Return a controller with these settings. Its store is not open yet."""
        return cls(settings, Store(settings), Streams(settings))

    def live_jobs(self) -> list[LiveJob]:
        """Return the readers' state of every job whose journal was read."""
        return [job.live for job in self.store.jobs.values() if not job.asleep]

    def own_metrics(self) -> CollectorRegistry:
        """Return the controller's metrics, with gauges of this moment. Call it on the event loop."""
        states: Counter[State] = Counter(job.state() for job in self.store.jobs.values())
        self.metrics.update(states, len(self.store.unreadable))
        return self.metrics.registry
