"""One rank of a benchmark: joins the others, then does what it is told, by one JSON line each way.

Told by standard input, answering on standard output; the end of the input ends it. So a runner can let several groups
of ranks take turns, each in processes of its own, and drift of the machine hits all.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gravac_agent.bench.program import end_with_parent

Answer = Callable[[dict[str, Any]], dict[str, Any]]
Setup = Callable[[int, int], AbstractContextManager[tuple[dict[str, Any], Answer]]]
"""Of rank and world size: what to say when ready, and what answers requests."""


def serve(setup: Setup, foreseen: tuple[type[Exception], ...] = ()) -> None:
    """Run one rank; its place among the others is in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Never returns: exit
    code 1, and the message alone, for errors that were ``foreseen``."""
    if "RANK" not in os.environ:
        sys.exit("run by `gravac bench`, which says which rank this is")
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        with setup(dist.get_rank(), dist.get_world_size()) as (ready, answer):
            answers.write(json.dumps(ready) + "\n")
            for line in sys.stdin:
                answers.write(json.dumps(answer(json.loads(line))) + "\n")
        dist.destroy_process_group()
    except foreseen as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    # Not through the interpreter's shutdown: gloo's threads outlive the group and may abort it.
    sys.stderr.flush()
    os._exit(0)


def counters(interface: str) -> dict[str, int]:
    """What an interface has counted so far: bytes and packets sent and received."""
    folder = Path("/sys/class/net", interface, "statistics")
    return {name: int((folder / name).read_text()) for name in ("tx_bytes", "tx_packets", "rx_bytes")}
