"""Kernels in files: found, made again where damaged, compiled by one process of many."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from gravac.kernels import use
from gravac.kernels.cpu import load
from gravac_agent.setup import compiling

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


@pytest.mark.distributed
def test_a_process_that_finds_kernels_in_a_file_loads_no_compiler() -> None:
    """It would take 26 MiB of a process that trains, and a second of its start. llvmlite links them."""
    code = "import gravac.compressors; from gravac import kernels; print(kernels.warm(), kernels.select_top("
    code += "torch.arange(9.0), 2).tolist(), 'numba' in sys.modules)"
    found = [
        python(code, GRAVAC_KERNELS="cpu") for _ in range(2)
    ]  # the first makes the file where there is none
    assert found[1] == "cpu [7, 8] False\n"


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
