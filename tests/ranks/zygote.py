"""A process that has imported everything and forks ranks: a fork takes milliseconds, the imports five seconds of CPU.

It reads a line of JSON for each launch, a list of what ``run`` takes, and answers with two: the process ids, and, when
all have ended, their exit codes (negative: the signal). It ends with its standard input. Nothing has run in it that a
fork could inherit: one thread, no gloo, no step of training, the random generators as at their start.
"""

import gc
import importlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

HERE = Path(__file__).parent


def prepare() -> ModuleType:
    """Import what ranks need, also what DistributedDataParallel imports when it is first used."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    for name in ("torch._dynamo", "torch.distributed", "gravac_agent"):
        importlib.import_module(name)
    return importlib.import_module("scenarios")


def threads() -> int:
    """Those of C++ too, where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def run(
    scenarios: ModuleType,
    scenario: str,
    arguments: dict[str, Any],
    environment: dict[str, str],
    output: str,
    result: str,
) -> NoReturn:
    """One rank, in a process of its own: what ``scenario`` returns goes to the JSON file ``result``."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.environ.clear()
        os.environ.update(environment)
        logging.basicConfig(level=logging.INFO)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        found = getattr(scenarios, scenario)(dist.get_rank(), dist.get_world_size(), **arguments)
        Path(result).write_text(json.dumps(found))
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads outlive the group and may abort the interpreter's shutdown


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests, which end us
    answers = os.dup(1)
    scenarios = prepare()
    assert threads() == 1, "a fork of a process with threads may hang"
    gc.collect()
    gc.freeze()
    os.write(answers, b"ready\n")
    for line in sys.stdin.buffer:
        ranks = []
        for one in json.loads(line):
            rank = os.fork()
            if rank == 0:
                os.close(answers)
                run(scenarios, **one)
            ranks.append(rank)
        os.write(answers, json.dumps(ranks).encode() + b"\n")
        codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        os.write(answers, json.dumps(codes).encode() + b"\n")


if __name__ == "__main__":
    main()
    os._exit(0)  # tidying up after two thousand modules takes seconds
