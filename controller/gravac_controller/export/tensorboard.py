"""A trace for TensorBoard: event files with one scalar a column, by step.

The extra ``gravac[tensorboard]`` brings the ``tensorboard`` package, whose own writer needs no torch.
"""

from collections.abc import Iterable
from pathlib import Path

from gravac_controller.extras import needs
from gravac_controller.views.columns import COLUMNS, row_of
from gravac_controller.views.models import WindowView

PREFIX = "gravac/"
NOT_DRAWN = {"window", "first_step", "last_step", "time"}
"""Those that are the axes."""


def write_tensorboard(windows: Iterable[WindowView], folder: Path) -> int:
    """Write an event file into ``folder``: ``gravac/gain`` … by the window's last step, at the time it arrived.

    What is unknown has no point. Returns the windows. Raises MissingExtra without tensorboard, OSError.
    """
    with needs("tensorboard", "tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer, rows = EventFileWriter(str(folder)), 0
    try:
        for view in windows:
            values = [
                Summary.Value(tag=PREFIX + column.name, simple_value=float(value))
                for column, value in zip(COLUMNS, row_of(view), strict=True)
                if column.name not in NOT_DRAWN and isinstance(value, int | float)
            ]
            writer.add_event(
                Event(wall_time=view.time, step=view.report.last_step, summary=Summary(value=values))
            )
            rows += 1
    finally:
        writer.close()
    return rows
