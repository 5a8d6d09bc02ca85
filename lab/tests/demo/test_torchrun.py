"""The ranks of the demo, and the example under torchrun itself."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.ranks.harness import free_port, tails, zygotes
from tests.support.warm import WarmPython
from tools.harness.forked import surroundings

ROOT = Path(__file__).parents[3]


def demo(folder: Path, *arguments: str) -> str:
    """Run two ranks of the demo in ``folder``, with torchrun's environment. Returns the output of rank 0."""
    shared = surroundings(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE="2", OMP_NUM_THREADS="1"
    )
    logs, ranks = [folder / f"rank{rank}.log" for rank in range(2)], []
    try:
        for rank, (zygote, log) in enumerate(zip(zygotes(), logs, strict=True)):
            with log.open("wb") as stream:
                environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(
                    zygote.start(
                        module="gravac_lab.demo", argv=arguments, environment=environment, stdout=stream
                    )
                )
        codes = [rank.wait(280) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0, 0], tails(logs)
    return logs[0].read_text()


@pytest.mark.distributed
def test_digits_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    monkeypatch.chdir(tmp_path)
    progress = tmp_path / "progress"
    options = ("--task", "digits", "--steps", "80", "--policy", "static:cf=20", "--window", "20")
    demo(tmp_path, *options, "--progress", str(progress))
    events = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "page", *["step"] * 80, "done"]
    assert events[1]["url"].startswith("http://127.0.0.1:")
    assert Path(events[1]["trace"]).is_file()
    assert {event["cf"] for event in events[10:82]} == {20.0}
    assert events[-1]["heldout_accuracy"] > 0.5  # guessing gets 0.1
    assert events[-1]["heldout_loss"] < 1.5 < 2.3 < events[2]["loss"] + 0.5


@pytest.mark.distributed
def test_lines_for_people_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = demo(tmp_path, "--steps", "21", "--plain")
    assert re.search(r"^step: step 20 loss \d", output, re.MULTILINE)
    assert not re.search(r"^step: step 19 ", output, re.MULTILINE)
    assert re.search(r"^done: heldout_loss \d", output, re.MULTILINE)
    assert not (tmp_path / "gravac-runs").exists(), "plain DDP leaves nothing behind"


@pytest.mark.distributed
def test_the_example_on_two_hosts(tmp_path: Path) -> None:
    """As docs/multi-host.md shows, with both hosts on this machine."""
    port = str(free_port())
    hosts = []
    with WarmPython(tmp_path) as warm:
        for node in range(2):
            folder = tmp_path / f"host{node}"
            folder.mkdir()
            words = (
                *("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
                *("--master-addr", "127.0.0.1", "--master-port", port),
                *(str(ROOT / "examples/train_ddp.py"), "--steps", "400", "--width", "64", "--batch", "4"),
            )
            with (folder / "log").open("wb") as log:
                hosts.append(
                    zygotes()[node].start(
                        module="torch.distributed.run",
                        argv=words,
                        environment=surroundings(**warm, OMP_NUM_THREADS="1"),
                        cwd=str(folder),
                        stdout=log,
                    )
                )
        try:
            codes = [host.wait(250) for host in hosts]
        finally:
            for host in hosts:
                host.send_signal(signal.SIGTERM)
                host.wait(30)
    logs = [(tmp_path / f"host{number}" / "log").read_text() for number in range(2)]
    assert codes == [0, 0], "\n".join(logs)
    assert re.search(r"step 400  loss \d.*page http://127\.0\.0\.1:\d+", logs[0]), logs[0]
    assert len(list((tmp_path / "host0/gravac-runs").glob("train_ddp-*/journal.jsonl"))) == 1
    assert not (tmp_path / "host1/gravac-runs").exists(), "only rank 0 keeps a journal"


def test_the_example_adds_one_line() -> None:
    text = (ROOT / "examples/train_ddp.py").read_text()
    needed = [line for line in text.splitlines() if "gent" in line and "import" not in line and "#" in line]
    assert len(needed) == 2, "the with line, and the optional log"
    assert sum("<- the one line added" in line for line in needed) == 1
