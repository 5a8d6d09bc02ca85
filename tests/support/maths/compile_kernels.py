"""Compiles Triton's kernels for a GPU that is not there, for the types that training uses. No argument.

What the interpreter takes the compiler may refuse. And the machine code must keep to the rules: nothing fused, where
the result would then not be that of plain torch, and no atomic that waits for others.
"""

import re
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from gravac.kernels import backend, use
from gravac.kernels.cuda import warm

FUSED = re.compile(r"\bfma\.rn\.f32|\bmad\.f32")
ORDERED = re.compile(r"\batom\S*\.(acquire|release|acq_rel)\b")


class Absent:
    """A GPU of compute capability 8.0."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    made: dict[str, str] = {}
    start = JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, **options: Any) -> None:
        flags = [
            constant if value is True else f"{constant}={value}"
            for constant, value in options.items()
            if value is True or constant == "KIND"
        ]
        name = " ".join((kernel.__module__, kernel.__name__, *flags))
        if name not in made:
            made[name] = start(kernel, *arguments, **{**options, "warmup": True}).asm["ptx"]

    JITFunction.run = compile_only
    triton.runtime.driver.set_active(Absent())
    backend._GPUS = ("cpu",)
    use("cuda")
    warm.run_all(torch.device("cpu"))
    for name, code in made.items():
        assert not FUSED.search(code), f"{name}: a product and a sum are rounded as one"
        assert not ORDERED.search(code), f"{name}: an atomic waits for all others"
    print(len(made), "kernels")


if __name__ == "__main__":
    main()
