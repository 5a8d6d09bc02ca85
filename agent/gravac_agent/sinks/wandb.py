"""Weights & Biases."""

from collections.abc import Sequence
from typing import Any, ClassVar

from gravac.protocol import JobSpec
from gravac_agent.sinks.base import Sink, SinkRow


class WandbSink(Sink):
    """Weights & Biases: figures over ``gravac/step``, each decision as ``gravac/reason``, the page in the summary.

    It writes into the run that is open (``wandb.run``), else into a new one with the job's name. A run of the program
    gets no steps of its own from it: its newest figures go with the next ``run.log`` of the program.

    Args:
        own: A run.
        project: Project of a new run; else as the client's variables say.
    """

    name: ClassVar[str] = "wandb"
    client: ClassVar[str] = "wandb"
    objects: ClassVar[tuple[str, ...]] = ("wandb.Run",)

    def __init__(self, own: Any = None, *, project: str | None = None) -> None:
        super().__init__(own)
        self._project = project
        self._run: Any = None

    def load(self) -> None:
        super().load()
        if self.own is None:
            import wandb

            self.own = wandb.run

    def open(self, spec: JobSpec) -> None:
        self._run = self.own
        if self._run is None:
            import wandb

            self._run = wandb.init(
                project=self._project,
                name=spec.job,
                config=spec.model_dump(mode="json", include={"policy", "compressor", "memory", "world_size"}),
                reinit="create_new",  # a run that the program opens later stays its own
                settings=wandb.Settings(console="off", x_disable_stats=True),
            )
        self._run.define_metric("gravac/step", hidden=True)
        self._run.define_metric("gravac/*", step_metric="gravac/step")

    def write(self, rows: Sequence[SinkRow]) -> None:
        values: dict[str, Any] = {}
        for row in rows:
            values |= {"gravac/step": row.step, **row.figures}
            if row.decision is not None:
                values |= {"gravac/rule": row.decision.rule, "gravac/reason": row.decision.reason}
            if row.page is not None:
                self._run.summary["gravac/page"] = row.page
            if self.own is None:
                self._run.log(values)
                values = {}
        if values:
            # Without a step of its own: the program's counter stays as it is, whether or not it passes steps.
            self._run.log(values, commit=False)

    def close(self) -> None:
        if self.own is None:
            self._run.finish()
