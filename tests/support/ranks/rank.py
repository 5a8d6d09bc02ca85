"""One rank of the distributed tests, in a process that runs scenarios one after another."""

import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import scenarios
from tests.support.ranks import left


def main() -> None:
    """Answer each line of standard input, a request, with one line, until there are no more or one fails."""
    code = 1
    try:
        logging.basicConfig(level=logging.INFO)
        faulthandler.register(signal.SIGUSR1)
        torch.set_num_threads(1)
        if namespace := os.environ.get("TEST_NAMESPACE"):
            from gravac_lab.bench.namespaces import enter  # only here: see tests/support/lab.py

            enter(namespace)
        dist.TCPStore("127.0.0.1", 0, is_master=True)  # the first one opens a pipe that stays
        with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
            for line in sys.stdin:
                run(**json.loads(line))
                answers.write(b"done\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads outlive the group and may abort the interpreter's shutdown


def run(scenario: str, arguments: dict[str, Any], port: int, log: str, result: str, fresh: bool) -> None:
    """Run a function of ``scenarios`` in a new group, and write what it returns to the JSON file ``result``.

    Unless the process is for it ``fresh``, it must leave everything as it was.
    """
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    left.reset()
    os.environ["MASTER_PORT"] = str(port)
    before = left.look()
    dist.init_process_group("gloo")
    dist.barrier()  # a short scenario would take the group down while others are still connecting
    found = getattr(scenarios, scenario)(dist.get_rank(), dist.get_world_size(), **arguments)
    Path(result).write_text(json.dumps(found))
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    if not fresh and (changed := left.changed_since(before)):
        raise RuntimeError(f"{scenario} did not leave all as it found it: {changed}")
