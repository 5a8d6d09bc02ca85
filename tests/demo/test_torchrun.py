"""The demo and the example under torchrun itself."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks.harness import free_port

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STANDALONE = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")}
    return clean | {"OMP_NUM_THREADS": "1"}


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.distributed
def test_digits_learn(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    progress = tmp_path / "progress"
    trainer = ["-m", "gravac_agent.demo", "--task", "digits", "--steps", "80", "--policy", "static:cf=20"]
    run([*TORCHRUN, *STANDALONE, *trainer, "--window", "20", "--progress", str(progress)], tmp_path)
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "page", *["step"] * 80, "done"]
    assert events[1]["url"].startswith("http://127.0.0.1:")
    assert Path(events[1]["trace"]).is_file()
    assert {event["cf"] for event in events[10:82]} == {20.0}
    assert events[-1]["heldout_accuracy"] > 0.5  # guessing gets 0.1
    assert events[-1]["heldout_loss"] < 1.5 < 2.3 < events[2]["loss"] + 0.5


@pytest.mark.distributed
def test_lines_for_people_without_progress(tmp_path: Path) -> None:
    output = run([*TORCHRUN, *STANDALONE, "-m", "gravac_agent.demo", "--steps", "21", "--plain"], tmp_path)
    assert re.search(r"^step: step 20 loss \d", output, re.MULTILINE)
    assert not re.search(r"^step: step 19 ", output, re.MULTILINE)
    assert re.search(r"^done: heldout_loss \d", output, re.MULTILINE)
    assert not (tmp_path / "gravac-runs").exists(), "plain DDP leaves nothing behind"


@pytest.mark.distributed
def test_the_example_on_two_hosts(tmp_path: Path) -> None:
    """As docs/multi-host.md shows, both hosts being this one."""
    port = str(free_port())
    commands = [
        [
            *(*TORCHRUN, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
            *("--master-addr", "127.0.0.1", "--master-port", port),
            *(str(ROOT / "examples/train_ddp.py"), "--steps", "100", "--width", "64", "--batch", "4"),
        ]
        for node in range(2)
    ]
    hosts = []
    for number, command in enumerate(commands):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            hosts.append(
                subprocess.Popen(command, cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        codes = [host.wait(250) for host in hosts]
    finally:
        for host in hosts:
            if host.poll() is None:
                host.terminate()
                host.wait(30)
    logs = [(tmp_path / f"host{number}" / "log").read_text() for number in range(2)]
    assert codes == [0, 0], "\n".join(logs)
    assert re.search(r"step 100  loss \d.*page http://127\.0\.0\.1:\d+", logs[0])
    assert len(list((tmp_path / "host0/gravac-runs").glob("train_ddp-*/journal.jsonl"))) == 1
    assert not (tmp_path / "host1/gravac-runs").exists(), "only rank 0 keeps a journal"


def test_the_example_adds_one_line() -> None:
    text = (ROOT / "examples/train_ddp.py").read_text()
    needed = [line for line in text.splitlines() if "gent" in line and "import" not in line and "#" in line]
    assert len(needed) == 2, "the with line, and the optional log"
    assert sum("<- the one line added" in line for line in needed) == 1
