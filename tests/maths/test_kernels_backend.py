"""Which backend runs: without numba, without a cache folder, with a wrong name."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

from gravac.kernels import active, backend, select_top, use, warm
from gravac.kernels.cpu import build
from tests.support.maths.backends import on

ROOT = Path(__file__).parents[2]


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, torch; " + code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a process that has not used a kernel yet."""
    monkeypatch.setattr(backend, "_chosen", None)
    monkeypatch.setattr(backend, "_active", None)
    return monkeypatch


@pytest.mark.parametrize(
    ("choice", "expected"), [("cpu", "cpu"), ("reference", "reference"), ("auto", "cpu")]
)
def test_the_environment_chooses(undecided: pytest.MonkeyPatch, choice: str, expected: str) -> None:
    undecided.setenv("GRAVAC_KERNELS", choice)
    assert select_top(torch.arange(9.0), 2).tolist() == [7, 8]
    assert active() == expected


def test_a_wrong_choice_is_named(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv("GRAVAC_KERNELS", "gpu")
    with pytest.raises(ValueError, match="GRAVAC_KERNELS='gpu' must be one of auto, cpu, cuda, reference"):
        active()
    with pytest.raises(ValueError, match="GRAVAC_KERNELS='fast' must be one of"):
        use("fast")  # type: ignore[arg-type]


@pytest.mark.distributed
def test_numba_is_loaded_only_when_needed() -> None:
    """Loading takes half a second that the controller and the command line need not spend."""
    code = "import gravac.kernels as k, gravac.compressors; print('numba' in sys.modules); "
    code += "sys.modules['numba'] = None; print(k.warm(), k.select_top(torch.arange(9.0), 2))"
    assert python(code, GRAVAC_KERNELS="auto") == "False\nreference tensor([7, 8])\n"


def test_a_broken_numba_is_an_error_only_when_asked_for(
    undecided: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def fail(name: str) -> None:
        raise RuntimeError("no such instruction")

    undecided.setattr(backend.importlib, "import_module", fail)
    undecided.setenv("GRAVAC_KERNELS", "auto")
    assert active() == "reference"
    assert "compiled kernels (numba) not available, using plain torch" in caplog.text
    assert backend.lacking() == "no such instruction"
    with pytest.raises(ImportError, match=r"pip install 'gravac\[cpu\]' \(no such instruction\)"):
        use("cpu")


def test_triton_is_loaded_only_for_gpus(
    undecided: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Loading takes half a second, and importing it fails wherever there is no wheel."""
    caplog.set_level("INFO")
    undecided.setattr(backend, "_gpu", None)
    undecided.setitem(sys.modules, "triton", None)
    undecided.delitem(sys.modules, "gravac.kernels.cuda.tally", raising=False)
    undecided.setenv("GRAVAC_KERNELS", "auto")
    assert not backend.on_gpu(torch.ones(3))
    assert backend._gpu is None
    assert not backend.gpu_kernels(torch.device("cuda"))
    assert "compiled kernels (Triton) not available, using plain torch" in caplog.text
    assert active() == "cpu"
    with pytest.raises(
        ImportError, match=r"GRAVAC_KERNELS='cuda' needs a working Triton: .*'gravac\[cuda\]'"
    ):
        use("cuda")


def test_reference_runs_no_triton_on_gpus(undecided: pytest.MonkeyPatch) -> None:
    undecided.setattr(backend, "_gpu", None)
    undecided.setenv("GRAVAC_KERNELS", "reference")
    assert not backend.gpu_kernels(torch.device("cuda"))


def test_no_cache_folder_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation without a home: numba finds no locator and says so with a RuntimeError."""
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])

    def twice(x: int) -> int:
        return 2 * x

    assert build.jit("int64(int64)")(twice)(21) == 42


def test_the_kernels_let_other_threads_run_and_keep_to_the_rules_of_arithmetic() -> None:
    """Without the GIL, so that the exchange does not hold the trainer up; one thread; nothing compiled late."""
    found = 0
    for name in backend._KERNELS:
        for kernel in vars(importlib.import_module(f"gravac.kernels.cpu.{name}")).values():
            if isinstance(kernel, Dispatcher):
                found += 1
                options = kernel.targetoptions
                assert options["nogil"]
                assert not options.get("fastmath")
                assert not options.get("parallel")
                assert kernel.signatures
                assert not kernel._can_compile
    assert found >= len(backend._KERNELS)


@pytest.mark.distributed
def test_a_process_that_finds_kernels_in_the_cache_compiles_none() -> None:
    """The compiler would take 100 MB of it from then on."""
    code = (
        "from importlib import import_module; from gravac.kernels import backend; from numba.core.dispatcher import "
        "Dispatcher; backend.use('cpu'); print([kernel for name in backend._KERNELS for kernel in "
        "vars(import_module(f'gravac.kernels.cpu.{name}')).values() if isinstance(kernel, Dispatcher) and "
        "kernel.stats.cache_misses])"
    )
    for _ in range(2):  # the first one fills the cache where it is empty
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_warm_says_what_will_run() -> None:
    with on("cpu"):
        assert warm() == active() == "cpu"
    with on("reference"):
        assert warm() == "reference"
        assert select_top(torch.arange(9.0), 1).tolist() == [8]
