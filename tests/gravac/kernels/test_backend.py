"""Which backend runs: without numba, without a folder for machine code, with a wrong name."""

import ctypes
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from gravac import kernels
from gravac.kernels import active, backend, select_top, treated_as_device, use, warm
from gravac.kernels.cpu import load
from tests.support.maths.backends import on


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a process that has not used a kernel yet."""
    for name in ("_chosen", "_active", "_loaded"):
        monkeypatch.setattr(backend, name, None)
    vars(backend).pop("host", None)
    yield monkeypatch
    vars(backend).pop("host", None)


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


def test_a_broken_numba_is_an_error_only_when_asked_for(
    undecided: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def fail(compiler: object) -> None:
        raise RuntimeError("no such instruction")

    undecided.setattr(load, "load", fail)
    undecided.setenv("GRAVAC_KERNELS", "auto")
    assert active() == "reference"
    assert "compiled kernels (numba) not available, using plain torch" in caplog.text
    assert backend.lacking() == "no such instruction"
    with pytest.raises(ImportError, match=r"pip install 'gravac\[cpu\]' \(no such instruction\)"):
        use("cpu")


def test_a_missing_numba_is_named(undecided: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> None:
        raise PackageNotFoundError(package)

    undecided.setattr(load, "version", absent)
    with pytest.raises(ImportError, match=r"pip install 'gravac\[cpu\]' \(numba is not installed\)"):
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


def test_the_kernels_let_other_threads_run() -> None:
    """Without the GIL, so that the exchange does not hold the trainer up."""
    with on("cpu"):
        assert backend.host is not None
        found = vars(backend.host).values()
        assert len(found) > 20
        assert not any(type(kernel)._flags_ & ctypes._FUNCFLAG_PYTHONAPI for kernel in found)


def test_tensors_are_treated_as_a_devices_in_all_threads(undecided: pytest.MonkeyPatch) -> None:
    def seen() -> tuple[bool, bool]:
        with ThreadPoolExecutor(1) as other:
            return other.submit(lambda: (backend.host is None, kernels.on_device(torch.ones(1)))).result()

    with on("cpu"):
        assert seen() == (False, False)
        with treated_as_device():
            with treated_as_device():
                use("cpu")
                assert seen() == (True, True)
            assert seen() == (True, True)
        assert seen() == (False, False)


def test_warm_says_what_will_run() -> None:
    with on("cpu"):
        assert warm() == active() == "cpu"
    with on("reference"):
        assert warm() == "reference"
        assert select_top(torch.arange(9.0), 1).tolist() == [8]
