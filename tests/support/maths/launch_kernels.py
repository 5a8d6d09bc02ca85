"""Launches each kernel as on a GPU, of which there is only what Triton asks for: which kernels does it find compiled?

    python tests/support/maths/launch_kernels.py CAPABILITY [MODULE...]

The driver is Triton's own but for the calls into CUDA, so that Triton looks kernels up as a job does. Reads
``TRITON_CACHE_DIR``. Prints how many were found and how many were not, and stops at the first that was not.
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.jit import JITFunction

from gravac.kernels import backend, use
from gravac.kernels.cuda import warm
from tools.gpu.ahead import is_of


class Missing(Exception):
    """A kernel would have to be compiled."""


class Launcher:
    """Takes the place of the C function that hands a kernel to CUDA."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        launches[0] += 1


launches, found = [0], [0]


def driver(capability: int) -> CudaDriver:
    """Return Triton's driver with a GPU of that capability."""
    made = CudaDriver.__new__(CudaDriver)
    made.launcher_cls = Launcher
    made.get_device_capability = lambda device: divmod(capability, 10)
    made.get_current_device = lambda: 0
    made.get_current_stream = lambda device: 0
    made.utils = SimpleNamespace(
        load_binary=lambda name, code, shared, device: (0, 0, 32, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 232_448, "warpSize": 32},
    )
    return made


def heard(*, cache_hit: bool, src: Any, **_: Any) -> None:
    if not cache_hit:
        raise Missing(src.name)
    found[0] += 1


def main() -> None:
    triton.knobs.compilation.listener = heard
    start = JITFunction.run
    JITFunction.run = lambda kernel, *given, **how: (
        start(kernel, *given, **how) if is_of(kernel, sys.argv[2:]) else None
    )
    triton.runtime.driver.set_active(driver(int(sys.argv[1])))
    backend._GPUS = ("cpu",)
    use("cuda")
    try:
        warm.run_all(torch.device("cpu"))
    except Missing:
        print(found[0], "found, 1 missing")
        return
    assert launches[0] > found[0]
    print(found[0], "found, 0 missing")


if __name__ == "__main__":
    main()
