"""``--device``: measured where this machine has it, as published where somebody measured it, else an error."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from tests.controller.cli.whatif.test_doctor import JOB, asked

LM = Path(__file__).parents[3] / "traces/lm-topk-shaped.jsonl.gz"


@pytest.mark.distributed
def test_this_cpu_is_measured() -> None:
    """A plan that codes longer on it takes longer, and the note says where that comes from."""
    elsewhere, here = asked(*JOB, "--link", "1gbit"), asked(*JOB, "--link", "1gbit", "--device", "cpu")
    assert here["notes"] == ["encoding and decoding were measured on this CPU now"]
    before, now = ({row["plan"]: row for row in found["rows"]} for found in (elsewhere, here))
    assert before.keys() == now.keys()
    assert before["dense"] == now["dense"], "dense is not coded"
    others = [row for plan, row in now.items() if plan != "dense"]
    assert all(row["step_seconds"] != before[row["plan"]]["step_seconds"] for row in others)
    assert all(0.25 < row["step_seconds"] < 60.0 for row in others)


@pytest.mark.distributed
def test_where_no_device_is_at_hand_what_was_measured_once_counts_with_its_source() -> None:
    job = (
        "--ranks",
        "2",
        "--elements",
        "124e6",
        "--compute",
        "0.05",
        "--link",
        "10gbit",
        "--optimizer",
        "adamw",
    )
    found = asked(*job, "--device", "H100")
    (note,) = found["notes"]
    assert note == (
        "codecs encode 95.0 GB/s, and the host needs 2.35 ms a bucket, as Top-k 1 % on an H100 (docs/gpu-h100.md, "
        "2026-11-26)"
    )
    rows = {row["plan"]: row for row in found["rows"]}
    coding = rows["bf16"]["step_seconds"] - rows["bf16"]["exposed_seconds"] - 0.05
    buckets = 1 + -(-(4 * 124_000_000 - (1 << 20)) // (25 << 20))
    assert coding == pytest.approx(buckets * 2.35e-3), "the host takes longer than the device"


@pytest.mark.distributed
def test_a_device_that_nobody_measured_is_an_error() -> None:
    sizes = (*JOB, "--link", "1gbit", "--device")
    for name in ("l4", "cuda", "cuda:1"):
        done = CliRunner().invoke(main, ["doctor", *sizes, name])
        assert done.exit_code == 2
        assert (
            f"--device {name}: this machine has no such device, and nobody published its figures: give cpu, which is "
            "measured, or h100, as was measured once (docs/gpu-h100.md, 2026-11-26)"
        ) in " ".join(done.output.split())
    done = CliRunner().invoke(main, ["doctor", str(LM), "--device", "cpu"])
    assert done.exit_code == 2
    assert "--device is for a job without a trace" in done.output
