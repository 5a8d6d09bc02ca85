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
PLANS: dict[str, tuple[str, float]] = {
    "observing": ("topk+bf16", 1.0),
    "bf16": ("bf16", 2.0),
    "int8": ("int8", 4.0),
    "nearest": ("nearest:levels=15", 7.5),
    "topk": ("topk", 8.0),
    "topk+bf16": ("topk+bf16", 8.0),
    "topk+twobit": ("topk+twobit", 8.0),
}
"""What is asked of a GPU first, by name: codec and CF."""
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
SHARDED: dict[str, Case] = {
    "sharded, dense": ("sharded", {"cf": 1.0}),
    "sharded": ("sharded", {}),
    "sharded, int8": ("sharded", {"compressor": "int8", "cf": 4.0}),
    "steps of a sharded model": ("sharded_steps", {}),
}
"""Of two ranks."""
WHOLE = ("plain", "one bucket", "bfloat16 gradients", "infinite", "unwaited", "unwaited, losses logged")
"""Of one rank. A GPU sends these in whole messages, which keep a little less than exact Top-k."""
for cases, names, whole in (
    (ONE_RANK, STREAMED, WHOLE),
    (TWO_RANKS, ("plain", "infinite", *FAST), ("plain", "infinite", *CODECS)),
):
    for plan, (codec, cf) in PLANS.items():
        cases[f"plan: {plan}"] = ("trained", {"compressor": codec, "cfs": [cf], "steps": 10})
    for suffix, those, more in (
        ("on streams", names, {}),
        ("as on a GPU", (*whole, *(f"plan: {plan}" for plan in PLANS)), {"whole": True}),
    ):
        for name in those:
            scenario, arguments = cases[name]
            cases[f"{name}, {suffix}"] = ("on_streams", {"scenario": scenario, **arguments, **more})
TWO_RANKS |= SHARDED
SECONDS, ALONE_SECONDS = 240.0, 60.0
"""Of one set of processes, for several cases and for one on a GPU."""


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

    def reference(self, device: Device, backend: Backend, world: int, name: str) -> list[Any]:
        """Return what ``results`` should be there: those of the CPU, with the messages of a GPU if it is one."""
        return self.results("cpu", "gloo", world, name if device == "cpu" else f"{name}, as on a GPU")

    def _together(self, device: Device, backend: Backend, world: int, name: str) -> Sequence[str]:
        cases = TWO_RANKS if world > 1 else ONE_RANK
        if device == "cpu":
            sets = [
                [one for one in cases if one.startswith("plan: ")],
                [one for one in cases if one.endswith(", as on a GPU")],
                [one for one, (scenario, _) in SHARDED.items() if scenario == "sharded"],
                [*ONE_RANK] if world == 1 else ["plain", "both delayed", "infinite", *FAST],
            ]
            together = next((those for those in sets if name in those), [])
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
                seconds=ALONE_SECONDS if device == "cuda" and len(names) == 1 else SECONDS,
                cases=[_in_folder(cases[name], folder) for name in names],
            )
        except RanksFailed as error:
            return str(error)


def _in_folder(case: Case, folder: str) -> Case:
    """Put the folder of the run into a case's arguments."""
    scenario, arguments = case
    return scenario, {name: folder if value == "{folder}" else value for name, value in arguments.items()}
