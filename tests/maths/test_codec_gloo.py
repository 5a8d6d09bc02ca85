"""The same aggregations on real processes and real gloo as in the simulated world; PowerSGD for many steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from maths.gloo_rank import __file__ as rank_file
from ranks.harness import free_port

from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS

pytestmark = pytest.mark.distributed
TESTS = Path(__file__).parent.parent


def on_gloo(
    size: int, runs: list[tuple[str, int, float, int]], seconds: float = 240
) -> list[list[dict[str, object]]]:
    """What every rank found for each ``(member, steps, cf, buckets)``."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, rank_file, json.dumps(runs)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, "RANK": str(rank)})
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert [process.returncode for process in processes] == [0] * size
    return [json.loads(output) for output in outputs]


@pytest.mark.parametrize("size", [2, 3])
def test_every_member_gives_the_same_bits_on_all_ranks(size: int) -> None:
    members = [*sorted(COMPRESSORS), *sorted(AGGREGATORS)]
    one, *others = on_gloo(size, [(name, 3, 4.0, 6) for name in members])
    assert len(one) == len(members)
    assert all(other == one for other in others)


def test_powersgd_runs_500_steps_with_any_number_of_buckets() -> None:
    """PyTorch's own hook deadlocks on gloo with two."""
    runs = [(f"powersgd:rank={rank}", 500, 1.0, buckets) for rank in (2, 4) for buckets in (1, 2)]
    runs += [("powersgd:rank=2", 100, 1.0, 8), ("powersgd:rank=4", 500, 1.0, 8)]
    one, two = on_gloo(2, runs)
    assert one == two
    for (text, _, _, _), found in zip(runs, one, strict=True):
        rank = int(text[-1])
        assert set(found["payload_bytes"]) == {4 * (2 * rank * 40 + 16)}  # type: ignore[call-overload]
