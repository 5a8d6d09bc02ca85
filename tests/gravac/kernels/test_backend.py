"""Which backend runs: without numba, without a folder for machine code, with a wrong name."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from gravac import kernels
from gravac.kernels import active, backend, select_top, treated_as_device, use, warm
from gravac.kernels.cpu import load
from gravac_agent.setup import compiling
from tests.support.maths.backends import on

ROOT = Path(__file__).parents[3]


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


def made() -> bytes:
    """The file of kernels that this process uses."""
    use("cpu")
    return next(
        (folder / f"kernels-{load._key()}.bin").read_bytes()
        for folder in load.folders()
        if (folder / f"kernels-{load._key()}.bin").exists()
    )


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


@pytest.mark.distributed
def test_a_process_that_finds_kernels_in_a_file_loads_no_compiler() -> None:
    """It would take 26 MiB of a process that trains, and a second of its start. llvmlite links them."""
    code = "import gravac.compressors; from gravac import kernels; print(kernels.warm(), kernels.select_top("
    code += "torch.arange(9.0), 2).tolist(), 'numba' in sys.modules)"
    found = [
        python(code, GRAVAC_KERNELS="cpu") for _ in range(2)
    ]  # the first makes the file where there is none
    assert found[1] == "cpu [7, 8] False\n"


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


def test_no_folder_is_needed_and_a_damaged_file_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = made()
    monkeypatch.setattr(load, "_compiled", lambda compiler: whole)
    for damaged in (whole[:-1] + b"?", whole[:50], b""):
        (tmp_path / "kernels.bin").write_bytes(damaged)
        monkeypatch.setattr(load, "folders", lambda: iter((tmp_path,)))
        assert load._read("kernels.bin", None) == load._parsed(whole)
        assert [file.read_bytes() for file in tmp_path.iterdir()] == [whole]
    monkeypatch.setattr(load, "folders", lambda: iter((tmp_path / "kernels.bin" / "no folder",)))
    assert load._read("kernels.bin", None) == load._parsed(whole)


TOGETHER = """
import sys, time
from pathlib import Path
from gravac.kernels.cpu import load

made = Path(sys.argv[1]).read_bytes()


def lines(path, more=b""):
    with path.open("ab") as file:
        file.write(more)
    return len(path.read_bytes())


def compiled(compiler):
    number = lines(folder / "compiled", b"x")
    while number == 2 and lines(folder / "compiled") < 3:  # without an end if the third waits for the second
        time.sleep(0.01)
    time.sleep(0.3)
    return made


load._compiled, load.folders = compiled, lambda: iter((folder,))
for folder in map(Path, sys.argv[2:]):
    lines(folder / "begun", b"x")
    while lines(folder / "begun") < 3:
        time.sleep(0.01)
    load.main()
    load._keep = lambda name, made: None  # as on a disk that is full now
"""


@pytest.mark.distributed
def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    """Where it cannot keep what it made, the others compile at the same time."""
    kept, *folders = (tmp_path / name for name in ("kept", "free", "full"))
    kept.write_bytes(made())
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-c", TOGETHER, str(kept), *map(str, folders)]
    with ThreadPoolExecutor(3) as all_of_them:
        run = partial(subprocess.run, command, cwd=ROOT, capture_output=True, check=True, timeout=60)
        assert {done.result().stdout for done in [all_of_them.submit(run) for _ in range(3)]} == {2 * made()}
    assert [(folder / "compiled").stat().st_size for folder in folders] == [1, 3]


@pytest.mark.distributed
def test_an_agent_says_once_a_machine_that_it_compiles_and_waits_no_longer_than_agreed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert compiling.compile_elsewhere(60.0) == made()
    assert "compiling kernels for this processor, once on a machine" in caplog.text
    caplog.clear()
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(subprocess.TimeoutExpired):
        compiling.compile_elsewhere(0.01)
    assert not caplog.text


def test_what_cannot_be_kept_is_said_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``/dev/full`` is a disk without room."""
    no_folder = tmp_path / "file"
    no_folder.touch()
    (tmp_path / f"kernels.bin.{os.getpid()}").symlink_to("/dev/full")
    monkeypatch.setattr(load, "folders", lambda: iter((no_folder, tmp_path)))
    load._keep("kernels.bin", b"made")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert "each start compiles them again" in caplog.text
    assert "No space left on device" in caplog.text
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in caplog.text


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
