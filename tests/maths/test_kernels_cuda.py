"""Triton's kernels: on a GPU where there is one, else in Triton's interpreter; and that they compile, GPU or not.

Each in a process of its own: torch imports Triton as it likes, and kernels are made for a GPU or for the interpreter
once and for all.
"""

import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.support.lab import needs_lab

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (Linux on x86-64 only)"
)


def python(*arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout[-8000:] + done.stderr[-4000:]


@needs_triton
@pytest.mark.long
def test_the_same_results() -> None:
    """``cuda_kernels.py``; where it fails, run that file like this to see more."""
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/support/maths/cuda_kernels.py", **interpreted
    )


@pytest.mark.distributed
@needs_triton
def test_they_compile_without_a_gpu() -> None:
    """Takes some seconds; what was compiled before, Triton has on disk."""
    python("tests/support/maths/compile_kernels.py")


@needs_lab
def test_the_benchmark_reports_a_missing_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="needs a CUDA GPU, and torch sees none here"):
        runpy.run_path(str(ROOT / "lab/benchmarks/gpu.py"), run_name="__main__")
