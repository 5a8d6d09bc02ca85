"""The cases that the tests in ``tests/gpu`` look at, by name, and what runs them."""

import fcntl
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS
from tests.support.gpu.scenarios import CFS
from tools.gpu.launch import Backend, Device, RanksFailed, run_ranks

Case = tuple[str, dict[str, Any]]
EXACT = ("dense", "fp16", "bf16", "topk", "topk+bf16", "randomk", "blockrandomk", "int8")
"""Codecs that give the same bits on a GPU as on a CPU: they choose, round and draw in kernels that do."""
FAST = (*EXACT, "dgc", "mstopk", "majority", "powersgd")
"""Codecs that never read the device. These four compute with sums or products, which a GPU rounds in another order."""
CODECS = (*sorted(COMPRESSORS), "topk+bf16", *sorted(AGGREGATORS))
WARM = 12
"""Steps before one may not wait: buckets are rebuilt, kernels compiled, and DDP itself waits in its first ten steps."""
ONE_RANK: dict[str, Case] = {
    "plain": ("trained", {"cfs": CFS, "steps": 24}),
    "agent delayed": ("trained", {"cfs": CFS, "steps": 24, "delays": ["agent"]}),
    "trainer delayed": ("trained", {"cfs": CFS, "steps": 24, "delays": ["trainer"]}),
    "both delayed": ("trained", {"cfs": CFS, "steps": 24, "delays": ["agent", "trainer"]}),
    "one bucket": ("trained", {"cfs": CFS, "sizes": [9000], "delays": ["agent", "trainer"]}),
    "bfloat16 gradients": ("trained", {"dtype": "bfloat16"}),
    "infinite": ("trained", {"infinite_at": 5, "scaled": True}),
    "unwaited": ("unwaited", {"steps": 24, "first": WARM, "cfs": CFS, "window": 1}),
    "unwaited, losses logged": (
        "unwaited",
        {"steps": 24, "first": WARM, "cfs": [10.0], "window": 5, "log": True},
    ),
    "profiled": ("profiled", {"steps": 24, "first": WARM, "folder": "{folder}"}),
    "measured": ("measured", {}),
    "learning, float32": ("learning", {"precision": "float32"}),
    "learning, bfloat16": ("learning", {"precision": "bfloat16"}),
    "learning, float16": ("learning", {"precision": "float16"}),
}
STREAMED = ("plain", "both delayed", "one bucket", "bfloat16 gradients", "infinite", "learning, float16")
"""Also run on simulated streams, on the CPU: the exchange that a GPU has, with the trainer's own DDP."""
GPU_ONLY: dict[str, Case] = {
    "compiled outside": ("learning", {"compiled": "outside"}),
    "compiled inside": ("learning", {"compiled": "inside"}),
    "captured": ("captured", {}),
}
"""Compiling takes a CPU longer than all other cases together; ``tests/ranks`` has it."""
TWO_RANKS: dict[str, Case] = {
    "plain": ("trained", {"cfs": CFS, "steps": 24}),
    "both delayed": ("trained", {"cfs": CFS, "steps": 24, "delays": ["agent", "trainer"]}),
    "infinite": ("trained", {"infinite_at": 5, "scaled": True}),
    **{
        codec: (
            "trained",
            {"compressor": codec, "cfs": [8.0], "steps": 10, "sizes": [3000, 4097, 1200, 2048]},
        )
        for codec in CODECS
    },
}
for cases, names in ((ONE_RANK, STREAMED), (TWO_RANKS, ("plain", "infinite", *FAST))):
    for name in names:
        scenario, arguments = cases[name]
        cases[f"{name}, on streams"] = ("on_streams", {"scenario": scenario, **arguments})
SECONDS = 240.0
"""Of one set of processes."""


class Runs:
    """Runs cases when they are asked for, each once.

    On the CPU all cases of a world run in one set of processes, since starting those takes longest. On a GPU a case has
    processes of its own (all codecs share theirs), so that one that hangs does not take the others along.
    """

    def __init__(self, shared: Path) -> None:
        """Args: ``shared``: folder in which workers that test at the same time leave what they found."""
        self._shared = shared
        self._found: dict[tuple[str, str, int, str], list[Any] | str] = {}

    def results(self, device: Device, backend: Backend, world: int, name: str) -> list[Any]:
        """Return what each rank returned for a case.

        Raises:
            AssertionError: A rank failed; the message is its output.
        """
        key = (device, backend, world, name)
        if key not in self._found:
            self._run(device, backend, world, self._together(device, backend, world, name))
        found = self._found[key]
        if isinstance(found, str):
            raise AssertionError(found)
        for rank, result in enumerate(found):
            assert "error" not in result, f"{name}, rank {rank}, {device}: {result['error']}"
        return found

    def _together(self, device: Device, backend: Backend, world: int, name: str) -> Sequence[str]:
        cases = TWO_RANKS if world > 1 else ONE_RANK
        if device == "cpu":
            together = [*cases] if world == 1 else ["plain", "both delayed", "infinite", *FAST]
        else:
            together = [*(FAST if backend == "nccl" else CODECS)] if name in CODECS else []
        return together if name in together else [name]

    def _run(self, device: Device, backend: Backend, world: int, names: Sequence[str]) -> None:
        wanted = [name for name in names if (device, backend, world, name) not in self._found]
        run = partial(_ranks, device, backend, world, wanted)
        ranks = self._once(sha256(repr((device, backend, world, wanted)).encode()).hexdigest(), run)
        for number, name in enumerate(wanted):
            found = ranks if isinstance(ranks, str) else [rank[number] for rank in ranks]
            self._found[device, backend, world, name] = found

    def _once(self, name: str, run: Callable[[], list[Any] | str]) -> list[Any] | str:
        """Return what the first of several workers finds; the others wait for it."""
        file = self._shared / f"gpu-cases-{name}.json"
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                file.write_text(json.dumps(run()))
        found: list[Any] | str = json.loads(file.read_text())
        return found


def _ranks(device: Device, backend: Backend, world: int, names: Sequence[str]) -> list[Any] | str:
    """Run cases on new ranks. Returns for each rank a list of results, or why there are none."""
    cases = TWO_RANKS if world > 1 else ONE_RANK | GPU_ONLY
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run_ranks(
                "tests.support.gpu.scenarios:each_of",
                device=device,
                backend=backend,
                world=world,
                seconds=SECONDS,
                cases=[_in_folder(cases[name], folder) for name in names],
            )
        except RanksFailed as error:
            return str(error)


def _in_folder(case: Case, folder: str) -> Case:
    """Put the folder of the run into a case's arguments."""
    scenario, arguments = case
    return scenario, {name: folder if value == "{folder}" else value for name, value in arguments.items()}
