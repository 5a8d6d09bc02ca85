"""``gravac observe -- …`` on real processes: the program is as it would be without, and a verdict follows it."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac_observe.record.recorder import CUT_OFF, UNSEEN
from gravac_observe.traces import read

PROGRAM = Path(__file__).with_name("program.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
GRAVAC = [sys.executable, "-m", "gravac_controller"]

TRAINING = (*TORCHRUN, PROGRAM, "14", "--end", "3")

pytestmark = pytest.mark.distributed


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that has a sitecustomize."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(
        "import os, sys\nos.environ['OTHER_SITECUSTOMIZE'] = 'ran'\n"
        "if 'observe' in sys.orig_argv and '--' not in sys.orig_argv: print(os.nice(0), file=open('nice', 'w'))\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "gravac-runs" / "observe").glob("*"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Return the program's end without gravac."""
    return run(tmp_path_factory.mktemp("plain"), *TRAINING)


def test_a_training_is_as_it_would_be_without(
    tmp_path: Path, plain: subprocess.CompletedProcess[str]
) -> None:
    found = run(tmp_path, *GRAVAC, "observe", "--warmup", "6", "-o", "page.html", "--", *TRAINING)
    assert found.stdout == plain.stdout, found.stderr
    assert found.stdout.endswith("ran 0\n"), "the environment's own sitecustomize ran, and no hook is left"
    assert found.returncode == plain.returncode == 1, "torchrun's, whose ranks ended with 3"
    verdict = re.search(
        r"^(.*of a step is exposed communication.*)\nWhy: .*\nNext: .*", found.stderr, re.MULTILINE
    )
    assert verdict is not None, found.stderr
    assert verdict[1][:40] in (tmp_path / "page.html").read_text()
    (folder,) = kept(tmp_path)
    assert {each.name for each in folder.iterdir()} == {"rank0.json.gz", "rank1.json.gz", "complete"}
    traces = [read(folder / f"rank{rank}.json.gz") for rank in (0, 1)]
    assert [len(trace.steps) for trace in traces] == [5, 5]
    assert [trace.optimizer for trace in traces] == ["AdamW", "AdamW"]
    assert {trace.about["parameters"] for trace in traces} == {4 * 64 * 65}
    assert all(0.0 < trace.about["step_seconds"] < 10.0 for trace in traces)


@pytest.mark.parametrize("hooks", ["gone", "passed"])
def test_ranks_that_exchange_nothing(tmp_path: Path, hooks: str) -> None:
    """Their DistributedDataParallel was converted, or is passed by."""
    found = run(
        tmp_path, *GRAVAC, "observe", "--warmup", "3", "--", *TORCHRUN, PROGRAM, "14", "--hooks", hooks
    )
    assert found.returncode == 0, found.stderr
    first = next(line for line in found.stderr.splitlines() if "exchange" in line)
    assert first == "No gradient is exchanged: 2 ranks train apart in the recorded steps.", found.stderr


def test_a_program_that_ends_early(tmp_path: Path) -> None:
    found = run(tmp_path, *GRAVAC, "observe", "--warmup", "3", "--json", "--", *TORCHRUN, PROGRAM, "6")
    assert found.returncode == 0, found.stderr
    printed = json.loads(found.stdout.splitlines()[-1])
    assert (printed["steps"], printed["traces"], printed["wrapper"]) == (3, 2, "ddp")


def test_a_line_in_the_script_does_the_same(tmp_path: Path, plain: subprocess.CompletedProcess[str]) -> None:
    found = run(tmp_path, *TRAINING, "--itself")
    assert found.stdout == plain.stdout, found.stderr
    assert found.returncode == plain.returncode
    assert re.search(r"of a step is exposed communication.*\nWhy: .*\nNext: ", found.stderr), found.stderr
    (folder,) = kept(tmp_path)
    assert {each.name for each in folder.glob("*.gz")} == {"rank0.json.gz", "rank1.json.gz"}
    assert folder.name.startswith("program-")


def test_what_fails_in_the_recorder_does_not_fail_the_training(
    tmp_path: Path, plain: subprocess.CompletedProcess[str]
) -> None:
    """The place of its folder is taken by a file."""
    found = run(tmp_path, *GRAVAC, "observe", "--warmup", "2", "--", *TRAINING, "--without-folder")
    assert found.stdout == plain.stdout, found.stderr
    assert found.returncode == plain.returncode
    assert "gravac observe: cannot record: " in found.stderr


def test_what_steps_no_optimizer_and_what_is_no_command(tmp_path: Path) -> None:
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-c", "import sys; sys.exit(7)")
    assert found.returncode == 7
    assert "sys.exit(7)'` imported torch.optim with the PYTHONPATH that gravac set" in found.stderr
    assert kept(tmp_path) == []
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-c", "import torch")
    assert f"gravac observe: no verdict: {UNSEEN}\n" == found.stderr
    assert kept(tmp_path) == []
    found = run(tmp_path, *GRAVAC, "observe", "--", "train.py")
    assert found.returncode == 127
    assert "gravac observe -- python train.py" in found.stderr
    (tmp_path / "train.sh").touch()
    found = run(tmp_path, *GRAVAC, "observe", "--", "./train.sh")
    assert (found.returncode, found.stderr) == (126, "Error: ./train.sh: cannot be run: Permission denied\n")


ALONE = """
import os, torch
def train(place, steps, end):
    model = torch.nn.Linear(4, 4)
    trained = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        trained.step()
    end()
"""


def test_a_program_that_is_cut_off(tmp_path: Path) -> None:
    """It cannot say so itself."""
    code = f"{ALONE}\ntrain(0, 13, lambda: os._exit(4))"
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-c", code)
    assert found.returncode == 4
    assert f"gravac observe: no verdict: {CUT_OFF}\n" == found.stderr
    assert kept(tmp_path) == []


@pytest.mark.parametrize("most", [10, 25_000])
def test_a_folder_that_takes_no_more(tmp_path: Path, most: int) -> None:
    """Not even a word, or the beginning of a trace: one true sentence."""
    limit = f"import resource, signal\nresource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))"
    code = f"{limit}\n{ALONE}\ntrain(0, 30, int)"
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-B", "-c", code)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("\n") == 1, found.stderr
    assert re.fullmatch(
        r"gravac observe: cannot record: .*File too large: '.*/rank0.json'.* another folder with GRAVAC_DATA_DIR\n",
        found.stderr,
    )
    assert kept(tmp_path) == []


def test_a_trace_that_cannot_be_packed_is_judged_as_it_is(tmp_path: Path) -> None:
    """The disk fills while it is being packed."""
    full = (
        "import shutil\ndef full(*_): raise OSError(28, 'No space left on device')\nshutil.copyfileobj = full"
    )
    found = run(
        tmp_path, *GRAVAC, "observe", "--", sys.executable, "-c", f"{ALONE}\n{full}\ntrain(0, 30, int)"
    )
    assert "Not the network: nothing is communicated." in found.stderr, found.stderr
    (folder,) = kept(tmp_path)
    assert {each.name for each in folder.iterdir()} == {"rank0.json"}
    assert "rank0.json: OSError(28, 'No space left on device')" in found.stderr


DAEMON = """
import sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for _ in range(3):
    os.close(_)
for _ in range(3):
    os.open(os.devnull, os.O_RDWR)
"""


@pytest.mark.parametrize("when", ["before it trains", "while it trains"])
def test_a_program_that_goes_on_without_its_command(tmp_path: Path, when: str) -> None:
    """As daemons do: what it records is kept, and the command says where."""
    waits = "time.sleep(5)" if when == "before it trains" else ""
    code = f"{ALONE}{DAEMON}\n{waits}\ntrain(0, 30, lambda: time.sleep(3))"
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-c", code)
    assert found.returncode == 0, found.stderr
    said = re.fullmatch(
        r"gravac observe: no verdict yet: `.*` has ended, but (\d+), which it started, goes on\. .*foreground.*"
        r"gravac observe (\S+)\n",
        found.stderr,
        re.DOTALL,
    )
    assert said is not None, found.stderr
    until = time.monotonic() + 60
    while Path(f"/proc/{said[1]}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    judged = run(tmp_path, *GRAVAC, "observe", said[2])
    assert "Not the network: nothing is communicated." in judged.stdout, judged.stderr


def test_a_training_in_a_fork(tmp_path: Path) -> None:
    """As notebooks start their ranks, with a recording that their end cuts short."""
    code = (
        f"{ALONE}\nimport torch.multiprocessing as all\n"
        "all.start_processes(train, (13, int), nprocs=1, start_method='fork')"
    )
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-c", code)
    assert found.returncode == 0, found.stderr
    assert "Not the network: nothing is communicated." in found.stderr
    (folder,) = kept(tmp_path)
    assert {each.name for each in folder.iterdir()} == {"rank0.json.gz", "complete"}


@pytest.mark.parametrize(("more", "nice"), [((), 19), (("--json",), os.nice(0))])
def test_a_verdict_steps_back_only_behind_its_training(
    tmp_path: Path, more: tuple[str, ...], nice: int
) -> None:
    """Once that has ended, as before JSON, the least of all would wait on busy cores until nothing else runs."""
    code = f"{ALONE}\ntrain(0, 13, int)\nimport time; time.sleep(8)"
    found = run(tmp_path, *GRAVAC, "observe", *more, "--", sys.executable, "-c", code)
    assert found.returncode == 0, found.stderr
    assert int((tmp_path / "nice").read_text()) == nice


def test_the_line_helps_where_the_command_does_not_reach(tmp_path: Path) -> None:
    """As its message says."""
    code = f"import gravac; gravac.observe()\n{ALONE}\ntrain(0, 13, int)"
    found = run(tmp_path, *GRAVAC, "observe", "--", sys.executable, "-I", "-c", code)
    assert found.stderr.count("Not the network: nothing is communicated.") == 1, found.stderr
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_reaches_the_program_once(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """Also where it is sent to all processes of the group, as by ``timeout``."""
    code = (
        "import signal, sys, time\ncame = []\nsignal.signal(15, lambda *_: came.append(1))\n"
        "print('up', flush=True)\nwhile not came: time.sleep(0.01)\ntime.sleep(1.0)\nsys.exit(4 + len(came))"
    )
    process = subprocess.Popen(
        [*GRAVAC, "observe", "--", sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.3)  # so that it waits: two signals to a process that does not run become one
    send(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 5
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_an_interrupt_of_the_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    """And gravac says why there is no verdict."""
    code = (
        "import os, signal, time\ncame = []\nsignal.signal(2, lambda *_: came.append(1))\n"
        "print('up', os.getpid(), flush=True)\nwhile not came: time.sleep(0.01)\ntime.sleep(0.3)\n"
        "print(len(came), 'came', flush=True)\nsignal.signal(2, signal.SIG_DFL)\nos.kill(os.getpid(), 2)"
    )
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [*GRAVAC, "observe", "--", sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(end)
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        printed = b""
        while b"\n" not in printed:
            printed += screen.read(1000)
        trained = int(printed.split()[1])
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # all who had it open have ended
            while more := screen.read(1000):
                printed += more
    assert process.wait(30) == 128 + signal.SIGINT
    assert b"1 came" in printed
    assert b"no verdict: SIGINT came before a step of an optimizer was recorded" in printed
    assert b"Traceback" not in printed
    assert not Path(f"/proc/{trained}").exists()
    assert kept(tmp_path) == []
