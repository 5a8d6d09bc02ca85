"""Triton's kernels: on a GPU where there is one, else in Triton's interpreter; and that they compile, GPU or not.

Each in a process of its own: torch imports Triton as it likes, and kernels are made for a GPU or for the interpreter
once and for all.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tools.gpu.ahead import settle

ROOT = Path(__file__).parents[3]
LARGEST, SOME = ["tiled"], ["adam", "rounded", "top"]
OTHERS = sorted({file.stem for file in (ROOT / "gravac/kernels/cuda").glob("*.py")} - {*LARGEST})
"""Modules whose kernels are compiled together: all of them take minutes."""
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (Linux on x86-64 only)"
)


def python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


@needs_triton
@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="here the tests in cuda/ run in this process")
@pytest.mark.parametrize(
    "tests", sorted(Path(__file__).with_name("cuda").glob("test_*.py")), ids=lambda path: path.stem
)
def test_the_same_results(tests: Path) -> None:
    """Where it fails, run them like this to see more."""
    python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), TRITON_INTERPRET="1")


@pytest.mark.distributed
@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100], ids=["A100", "H100", "B200"])
@pytest.mark.parametrize("modules", [LARGEST, OTHERS], ids=["largest", "others"])
def test_they_compile_without_a_gpu(modules: list[str], capability: int) -> None:
    """Takes some seconds; what was compiled before, Triton has on disk."""
    python("tests/support/maths/compile_kernels.py", str(capability), *modules)


@pytest.mark.distributed
@needs_triton
def test_a_launch_finds_what_was_compiled_ahead(tmp_path: Path) -> None:
    """In a folder that was copied: Triton lists a kernel's files by absolute paths, which must be set right first."""
    made, copied = tmp_path / "made", tmp_path / "copied"
    said = python("-m", "tools.gpu.ahead", "--capability", "90", "--folder", str(made), "--only", *SOME)
    made.rename(copied)

    def found(capability: int) -> str:
        return python(
            "tests/support/maths/launch_kernels.py", str(capability), *SOME, TRITON_CACHE_DIR=str(copied)
        ).strip()

    assert found(90) == "0 found, 1 missing"
    kernels = settle(copied)
    assert kernels > 20
    assert f": {kernels} kernels for sm_90" in said
    assert found(90) == f"{kernels} found, 0 missing"
    assert found(80) == "0 found, 1 missing"
