"""Run the exchange on simulated devices in many orders of work: python -m tools.schedules.

Each schedule is a training of two ranks with non-finite steps and a CF switch in each step, compared with the host's
executor, bit by bit; or another life of an executor, such as a backward that ends in an exception. Prints what differs.

With ``--switches`` every codec that reads nothing of a device trains with 1 and with 6 buckets through that many CF
switches, in one schedule each.
"""

import argparse
import itertools
import logging
import sys
import time

import torch

from gravac_agent.streams.executor import StreamExecutor
from tests.support.streams.codecs import fast, switching
from tests.support.streams.compare import differences
from tests.support.streams.lives import LIVES
from tests.support.streams.task import Task
from tests.support.streams.training import on_host, on_streams

CODECS = ("dense", "bf16", "topk", "topk+bf16", "randomk", "blockrandomk", "mstopk")
"""Codecs whose steps are undone without rounding."""
CFS = (1.0, 10.0, 4.0, 2.0, 20.0, 3.0)
BAD = frozenset({(2, 1), (4, 0), (4, 1)})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--schedules", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument(
        "--switches", type=int, help="instead: train each fast codec through that many CF switches"
    )
    parser.add_argument("--codecs", nargs="+", default=fast(), metavar="CODEC", help="with --switches: which")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    if options.switches is not None:
        return _switches(options.switches, options.codecs, options.first)
    return _schedules(options.schedules, options.first)


def _schedules(count: int, first: int) -> int:
    tasks = [Task(codec, buckets, CFS, BAD) for codec, buckets in itertools.product(CODECS, (1, 6))]
    expected = [on_host(task) for task in tasks]
    kinds = len(tasks) + len(LIVES)
    began, failed = time.monotonic(), 0
    for number in range(count):
        seed, kind = first + number, number % kinds
        if kind < len(tasks):
            name, found = str(tasks[kind]), differences(on_streams(tasks[kind], seed), expected[kind])
        else:
            life = LIVES[kind - len(tasks)]
            name, found = life.__name__, life(StreamExecutor, seed)
        if found:
            failed += 1
            print(f"seed {seed}, {name}: {'; '.join(found[:5])}", flush=True)
    print(f"{count} schedules in {time.monotonic() - began:.0f} s, {failed} differ", flush=True)
    return 1 if failed else 0


def _switches(count: int, codecs: list[str], seed: int) -> int:
    began, failed = time.monotonic(), 0
    for codec, buckets in itertools.product(codecs, (1, 6)):
        task, start = Task(codec, buckets, switching(count + 1)), time.monotonic()
        host = on_host(task)
        middle = time.monotonic()
        found = differences(on_streams(task, seed), host)
        end = time.monotonic()
        counted = sum(result.finite and not result.tick.sums.nonfinite for result in host[0].results)
        print(
            f"{codec:22} {buckets} buckets: {counted} of {count + 1} steps count, host {middle - start:5.1f} s, "
            f"streams {end - middle:5.1f} s, {len(found)} differences {'; '.join(found[:5])}",
            flush=True,
        )
        failed += bool(found) or counted != count + 1
    seconds = time.monotonic() - began
    print(
        f"{2 * len(codecs)} trainings of {count} CF switches in {seconds:.0f} s, {failed} differ", flush=True
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
