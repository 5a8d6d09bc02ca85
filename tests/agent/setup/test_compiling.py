"""Eight ranks of a machine that start at once do not compile the same kernels eight times."""

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch

from gravac import kernels
from gravac.kernels import backend
from gravac_agent.setup import compiling

RANKS = 4
_context = multiprocessing.get_context("fork")


def rank(folder: Path, begin: Barrier, keeps: bool) -> None:
    """What a rank does at its start, with a compiler that takes half a second, and keeps what it made."""

    def compile_all() -> str:
        if not (folder / "kept").exists():
            (folder / f"compiled {os.getpid()} {time.monotonic()}").touch()
            time.sleep(0.5)
            if keeps:
                (folder / "kept").touch()
        return "cpu"

    backend.gpu_kernels, kernels.warm = (lambda device: True), compile_all  # type: ignore[assignment]
    begin.wait()
    compiling.warm(torch.device("cuda", 0), 20.0)
    (folder / f"ended {os.getpid()}").touch()


def started(folder: Path, keeps: bool = True) -> list[float]:
    """Starts ranks at once. Returns when each compiled that did."""
    begin = _context.Barrier(RANKS)
    ranks = [_context.Process(target=rank, args=(folder, begin, keeps)) for _ in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60.0)
    assert len(list(folder.glob("ended *"))) == RANKS
    return sorted(float(file.name.split()[-1]) for file in folder.glob("compiled *"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.mark.distributed
@pytest.mark.smoke
def test_one_rank_of_a_machine_compiles(tmp_path: Path, cache: Path) -> None:
    assert len(started(tmp_path)) == 1
    assert cache.is_dir()


@pytest.mark.distributed
def test_ranks_whose_cache_cannot_be_kept_compile_at_once(tmp_path: Path, cache: Path) -> None:
    """Not in turn, which would take longer than without waiting for each other."""
    first, *others = started(tmp_path, keeps=False)
    assert len(others) == RANKS - 1
    assert others[0] >= first + 0.5
    assert others[-1] < others[0] + 0.4


def _hold(file: Path, begin: Barrier) -> None:
    with compiling.in_turn(file, 1.0):
        begin.wait()
        time.sleep(30.0)


@pytest.mark.distributed
def test_nobody_waits_without_end_or_for_one_that_ended(tmp_path: Path) -> None:
    file, begin = tmp_path / "lock", _context.Barrier(2)
    holder = _context.Process(target=_hold, args=(file, begin))
    holder.start()
    begin.wait()
    began = time.monotonic()
    with compiling.in_turn(file, 0.3):
        assert 0.3 <= time.monotonic() - began < 10.0
    holder.kill()
    holder.join()
    with compiling.in_turn(file, 60.0):
        assert time.monotonic() - began < 30.0


def test_without_a_folder_that_can_be_written_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with compiling.in_turn(tmp_path / "file" / "lock", 60.0):
        pass


def test_the_host_has_a_lock_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "warm", lambda: "cpu")
    for device in (
        torch.device("cpu"),
        torch.device("cuda", 0),
    ):  # without Triton there is nothing to compile
        monkeypatch.setattr(backend, "gpu_kernels", lambda device: False)
        compiling.warm(device, 1.0)
    assert not cache.exists()
