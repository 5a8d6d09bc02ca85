"""TensorBoard."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from gravac.protocol import JobSpec
from gravac_agent.sinks.base import Sink, SinkRow


class TensorBoardSink(Sink):
    """TensorBoard: figures as scalars, decisions and the address of the page as texts.

    Args:
        own: A ``SummaryWriter`` of torch or tensorboardX.
        dir: Folder of the event file; none: ``runs/<job>``.
    """

    name: ClassVar[str] = "tensorboard"
    client: ClassVar[str] = "torch.utils.tensorboard"
    objects: ClassVar[tuple[str, ...]] = ("tensorboardX.SummaryWriter", "torch.SummaryWriter")

    def __init__(self, own: Any = None, *, dir: str | None = None) -> None:
        super().__init__(own)
        self._dir = dir
        self._writer: Any = None

    def open(self, spec: JobSpec) -> None:
        self._writer = self.own
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._dir or os.path.join("runs", spec.job))

    def write(self, rows: Sequence[SinkRow]) -> None:
        for row in rows:
            for name, value in row.figures.items():
                self._writer.add_scalar(name, value, row.step, row.time)
            if row.decision is not None:
                text = f"{row.decision.rule}: {row.decision.reason}"
                self._writer.add_text("gravac/decision", text, row.step, row.time)
            if row.page is not None:
                self._writer.add_text("gravac/page", row.page, row.step, row.time)
        self._writer.flush()

    def close(self) -> None:
        if self.own is None:
            self._writer.close()
