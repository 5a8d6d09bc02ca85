"""Rows of many runs: computed by several processes and appended to a file, which a later start continues."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from gravac_lab.programs.process import end_with_parent
from gravac_lab.tournament.rows import whole_lines

Cell = TypeVar("Cell")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none if it does not exist. A last line without its end is left out.

    Raises:
        ValueError: A line is no JSON; names it.
    """
    found = []
    for number, line in enumerate(whole_lines(path) if path.exists() else (), 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return found


def append_rows(
    run: Callable[[Cell], dict[str, Any]], cells: Sequence[Cell], path: Path, workers: int
) -> Iterator[dict[str, Any]]:
    """Run every cell and append its row, in the order in which they end. A last line that was cut off is removed first.

    Args:
        run: Returns the row of a cell. It and the cells are sent to other processes.
        cells: What to run.
        path: File of rows.
        workers: Processes at the same time, of one thread each.

    Yields:
        Each row, once it is in the file.
    """
    if not cells:
        return
    if path.exists():
        path.write_text("".join(f"{line}\n" for line in whole_lines(path)))
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker) as pool, path.open("a") as out:
        for ended in as_completed([pool.submit(run, cell) for cell in cells]):
            row = ended.result()
            out.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
            out.flush()
            yield row


def _begin_worker() -> None:
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
