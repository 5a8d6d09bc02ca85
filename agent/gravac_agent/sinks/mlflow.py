"""MLflow."""

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from gravac.protocol import JobSpec
from gravac_agent.sinks.base import Sink, SinkRow

MOST_METRICS = 500
"""Figures in one request; servers take 1,000. [1; chosen]"""
MOST_LINES = 1000
"""Decisions in the text. The journal has all. [1; chosen]"""


class MlflowSink(Sink):
    """MLflow: metrics, the newest decision and the page as tags, all decisions as ``gravac/decisions.txt`` at the end.

    It writes into the run that is active, else into a new one with the job's name.

    Args:
        own: A run.
        run: The identifier of one.
        uri: Address of the tracking server; else as the client is set up.
        experiment: Experiment of a new run.
    """

    name: ClassVar[str] = "mlflow"
    client: ClassVar[str] = "mlflow"
    objects: ClassVar[tuple[str, ...]] = ("mlflow.Run",)

    def __init__(
        self, own: Any = None, *, run: str | None = None, uri: str | None = None, experiment: str = "Default"
    ) -> None:
        super().__init__(own)
        self._run, self._uri, self._experiment = run, uri, experiment
        self._created = False
        self._client: Any = None
        self._decided: deque[str] = deque(maxlen=MOST_LINES)

    def load(self) -> None:
        super().load()
        if self.own is None and self._run is None:
            import mlflow

            self.own = mlflow.active_run()  # of this thread
        if self.own is not None:
            self._run = self.own.info.run_id

    def open(self, spec: JobSpec) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        if self._run is None:
            found = self._client.get_experiment_by_name(self._experiment)
            place = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
            self._run = self._client.create_run(place, run_name=spec.job).info.run_id
            self._created = True

    def write(self, rows: Sequence[SinkRow]) -> None:
        from mlflow.entities import Metric, RunTag

        tags: dict[str, str] = {}
        metrics = []
        for row in rows:
            at = round(1000 * row.time)
            metrics += [Metric(name, value, at, row.step) for name, value in row.figures.items()]
            if row.decision is not None:
                tags["gravac.decision"] = row.decision.reason
                self._decided.append(f"step {row.step}, {row.decision.rule}: {row.decision.reason}\n")
            if row.page is not None:
                tags["gravac.page"] = row.page
        found = [RunTag(name, value) for name, value in tags.items()]
        for start in range(0, max(1, len(metrics)), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + MOST_METRICS], tags=found)
            found = []

    def close(self) -> None:
        self._client.log_text(self._run, "".join(self._decided), "gravac/decisions.txt")
        if self._created:
            self._client.set_terminated(self._run)
