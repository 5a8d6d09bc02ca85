"""Compiles Triton's kernels for a GPU that is not there, for the types that training uses.

    python tests/support/maths/compile_kernels.py CAPABILITY [MODULE...]

What the interpreter takes the compiler may refuse. And the machine code must keep to the rules: nothing fused, where
the result would then not be that of plain torch, no atomic that waits for others, and no register that does not fit.
Prints the registers of each.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton

from tools.gpu.ahead import compile_all

FUSED = re.compile(r"\bfma\.rn\.f32|\bmad\.f32")
ORDERED = re.compile(r"\batom\S*\.(acquire|release|acq_rel)\b")


TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


def main() -> None:
    capability = int(sys.argv[1])
    made = compiled(capability, sys.argv[2:])
    for name, code in made.items():
        assert not FUSED.search(code), f"{name}: a product and a sum are rounded as one"
        assert not ORDERED.search(code), f"{name}: an atomic waits for all others"
        registers, spilled = assembled(code, capability)
        print(f"sm_{capability} {name}: {registers} registers")
        assert not spilled, f"{name} for sm_{capability}: {spilled} bytes of registers are spilled"
    print(len(made), "kernels")


def compiled(capability: int, modules: list[str]) -> dict[str, str]:
    """Return the PTX of each kernel."""
    made: dict[str, str] = {}

    def note(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any], code: Any) -> None:
        flags = [
            constant if value is True else f"{constant}={value}"
            for constant, value in options.items()
            if value is True or constant in ("KIND", "DTYPE")
        ]
        types = [
            str(one.dtype).removeprefix("torch.") for one in arguments[:1] if isinstance(one, torch.Tensor)
        ]
        name = " ".join((kernel.__module__, kernel.__name__, *types, *flags))
        made.setdefault(name, code.asm["ptx"])

    compile_all(capability, note, modules)
    return made


def assembled(code: str, capability: int) -> tuple[int, int]:
    """Return the registers that a thread needs, and the bytes that do not fit into them."""
    assembler = TOOLS / (
        "ptxas-blackwell" if capability >= 100 and (TOOLS / "ptxas-blackwell").exists() else "ptxas"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.ptx").write_text(code)
        suffix = "a" if capability >= 90 else ""
        said = subprocess.run(
            [assembler, "-v", f"-arch=sm_{capability}{suffix}", "a.ptx", "-o", "a.cubin"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    assert not said.returncode, said.stderr
    spilled = sum(int(one) for one in re.findall(r"(\d+) bytes spill", said.stderr))
    return max(int(one) for one in re.findall(r"Used (\d+) registers", said.stderr)), spilled


if __name__ == "__main__":
    main()
