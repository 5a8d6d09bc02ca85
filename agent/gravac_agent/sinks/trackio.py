"""trackio, by Hugging Face."""

from collections.abc import Sequence
from typing import Any, ClassVar

from gravac.protocol import JobSpec
from gravac_agent.sinks.base import Sink, SinkRow


class TrackioSink(Sink):
    """trackio: figures, and each decision as ``gravac/reason``.

    It writes into the run that is open, else into a new one with the job's name. A run of the program counts each write
    as a step, and ``gravac/step`` has the training's.

    Args:
        own: A run.
        project: Project of a new run.
        space: Space that a new run goes to; none: this machine, or as the client's variables say.
    """

    name: ClassVar[str] = "trackio"
    client: ClassVar[str] = "trackio"
    objects: ClassVar[tuple[str, ...]] = ("trackio.Run",)

    def __init__(self, own: Any = None, *, project: str = "gravac", space: str | None = None) -> None:
        super().__init__(own)
        self._project, self._space = project, space
        self._run: Any = None

    def load(self) -> None:
        super().load()
        if self.own is None:
            from trackio import context_vars

            self.own = context_vars.current_run.get()  # of this thread

    def open(self, spec: JobSpec) -> None:
        self._run = self.own
        if self._run is None:
            import trackio

            self._run = trackio.init(
                self._project,
                name=spec.job,
                space_id=self._space,
                config=spec.model_dump(mode="json", include={"policy", "compressor", "memory", "world_size"}),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, rows: Sequence[SinkRow]) -> None:
        for row in rows:
            values: dict[str, Any] = {"gravac/step": row.step, **row.figures}
            if row.decision is not None:
                values |= {"gravac/rule": row.decision.rule, "gravac/reason": row.decision.reason}
            if row.page is not None:
                values["gravac/page"] = row.page
            self._run.log(values, step=row.step if self.own is None else None)

    def close(self) -> None:
        if self.own is None:
            self._run.finish()
