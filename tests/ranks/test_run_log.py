"""The lines that the agent logs: on rank 0 only, with and without logging configured by the program."""

import re
from pathlib import Path

import pytest

from gravac.predict import Recording
from gravac.predict.advice import other_optimizers
from gravac.replays.replay import check
from gravac.traces import read_trace
from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed


def test_one_line_at_the_start_and_one_at_the_end(run_ranks: RunRanks, tmp_path: Path) -> None:
    results = run_ranks("logged", 2, fresh=True)
    assert all(found["level"] == found["handlers"] == 0 for found in results)  # restored
    unconfigured, configured, torchs, ours = parts(tmp_path / "rank0.log")

    journal = re.escape(str(tmp_path / "job0"))
    begin, end = (line for line in unconfigured if line.startswith("gravac: "))
    assert re.fullmatch(
        rf"gravac: job job0: page http://127\.0\.0\.1:\d+, journal {journal}/journal\.jsonl \(2 ranks, "
        r"sending topk\+bf16 at CF 10\)",
        begin,
    )
    assert re.fullmatch(
        rf"gravac: job job0 ended after 45 steps: held topk\+bf16 at CF 10 for 100 %% of steps, "
        rf"\d+(\.\d)?x fewer bytes, replay with: gravac replay {journal} --check".replace("%%", "%"),
        end,
    )
    missing = [line for line in unconfigured if "plain torch" in line]
    assert len(missing) == 1
    assert missing[0].startswith("gravac WARNING: ")
    assert missing[0].endswith("pip install 'gravac[cpu]'")

    assert [line.partition(":")[0] for line in configured if "job1" in line] == [
        "ours INFO job job1",
        "ours INFO job job1 ended after 45 steps",
    ]
    begin, end = (line for line in configured if "job1" in line)
    assert "decided in process" in begin
    assert begin.endswith("(2 ranks, sending dense)")
    job1 = re.escape(str(tmp_path / "job1"))
    assert re.search(
        rf": stayed dense for 100 % of steps, see what other plans would do with: gravac whatif {job1}, replay with: ",
        end,
    ), end

    assert [line for line in torchs if "job job2: decided in process" in line] == [
        "ours INFO job job2: decided in process, without a page, journal "
        f"{tmp_path / 'job2' / 'journal.jsonl'} (2 ranks on an emulated link of 1 Mbit/s, sending topk+bf16 at CF 10)"
    ]
    others = other_optimizers(Recording.from_trace(read_trace(tmp_path / "job2" / "journal.jsonl")))
    assert others.startswith("With gravac.optim.AdamW, training is predicted to be ")
    assert " It then sends topk+twobit at CF " in others
    *_, end, said = (line for line in torchs if "job2" in line)
    assert "ended after 25 steps" in end
    assert said == f"ours INFO job job2: {others}"
    assert "ended after 25 steps" in [line for line in ours if "job3" in line][-1], "it does so already"

    for rank in (0, 1):
        written = (tmp_path / f"rank{rank}.log").read_text()
        assert "\x1b" not in written
        assert written.count("fake: line") == 4
        assert not re.findall(r"^fake: line", written, re.MULTILINE)
    assert "gravac: job" not in "".join(line for part in parts(tmp_path / "rank1.log") for line in part)
    assert check(tmp_path / "job0" / "journal.jsonl").ok


def test_lines_survive_a_program_that_disables_existing_loggers(run_ranks: RunRanks, tmp_path: Path) -> None:
    results = run_ranks("reconfigured", 2, fresh=True)
    for rank, found in enumerate(results):
        written = (tmp_path / f"log{rank}").read_text()
        names = set(found["names"])
        assert {"gravac.agent", "gravac.memories", "gravac.kernels"} <= names
        assert {name for name in names if f"from {name}\n" in written} == names
        assert ("gravac.agent job heard: decided in process" in written) == (rank == 0)
        assert ("gravac.agent job heard ended after 30 steps" in written) == (rank == 0)


def parts(log: Path) -> list[list[str]]:
    """Return the lines of each part of the program."""
    return [part.splitlines()[1:] for part in re.split(r"^--- ", log.read_text(), flags=re.MULTILINE)[1:]]
