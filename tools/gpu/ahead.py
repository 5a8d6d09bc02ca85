"""Compile Triton's kernels for a GPU that is not here, into a folder that travels: ``make gpu-kernels``.

    python -m tools.gpu.ahead [--capability 90] [--folder build/gpu-kernels] [--only MODULE...]

Triton finds a kernel again by its own version and binary, by the kernel's source, types and options, by the target, and
by the version of ``ptxas``. So run it with the Python and the Triton that the machine has.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu-kernels"
CAPABILITY = 90
"""Ten times the compute capability of an H100 and an H200."""
_GROUP = "__grp__*.json"
"""Triton's lists of what belongs to a kernel, by absolute paths."""


class Absent:
    """Triton's driver of a GPU that is not here.

    Args:
        capability: Compute capability, times ten.
    """

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all(
    capability: int,
    seen: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None],
    modules: Collection[str] = (),
) -> None:
    """Compile every kernel in each variant that ``kernels.warm`` launches, and launch none. For a process of its own.

    Args:
        capability: Compute capability, times ten.
        seen: Called with each kernel, its arguments, its options, and what was compiled.
        modules: Modules of ``kernels.cuda`` whose kernels alone are compiled; empty: all.
    """
    import triton
    from triton.runtime.jit import JITFunction

    from gravac.kernels import backend, use
    from gravac.kernels.cuda import warm

    start = JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, **options: Any) -> None:
        if is_of(kernel, modules):
            seen(kernel, arguments, options, start(kernel, *arguments, **{**options, "warmup": True}))

    JITFunction.run = compile_only
    try:
        triton.runtime.driver.set_active(Absent(capability))
        backend._GPUS = ("cpu",)
        use("cuda")
        warm.run_all(torch.device("cpu"))
    finally:
        JITFunction.run = start


def is_of(kernel: Any, modules: Collection[str]) -> bool:
    """Return whether a kernel is of one of these modules; of none: of any."""
    return not modules or kernel.__module__.rpartition(".")[2] in modules


def settle(folder: Path) -> int:
    """Make a folder of compiled kernels that was copied from elsewhere usable where it is. Returns how many there are.

    Triton lists the files of a kernel by their absolute paths, and compiles again where one is missing.
    """
    found = list(folder.glob(f"*/{_GROUP}"))
    for listed in found:
        names = json.loads(listed.read_text())["child_paths"]
        text = json.dumps({"child_paths": {name: str(listed.parent / name) for name in names}})
        part = listed.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(listed)
    return len(found)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tools.gpu.ahead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capability", type=int, default=CAPABILITY, help="ten times the compute capability")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="MODULE", help="to try kernels that were changed"
    )
    options = parser.parse_args(arguments)
    os.environ |= {"TRITON_CACHE_DIR": str(options.folder.absolute()), "TRITON_STORE_BINARY_ONLY": "1"}
    begun, kernels = time.monotonic(), set[str]()
    compile_all(options.capability, lambda kernel, given, how, made: kernels.add(made.hash), options.only)
    import triton

    size = sum(file.stat().st_size for file in options.folder.rglob("*") if file.is_file()) / 1e6
    print(
        f"{options.folder}: {len(kernels)} kernels for sm_{options.capability}, Triton {triton.__version__}, "
        f"Python {sys.version_info.major}.{sys.version_info.minor}, {size:.1f} MB, {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
