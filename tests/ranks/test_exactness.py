"""P3: CF = 1 and enabled=False are plain DDP, bit for bit. P2: CFs switch on all ranks at once, despite delays."""

import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac.protocol import WindowReport
from gravac.traces import read_trace
from gravac.wording import format_percent
from gravac_controller.cli import main
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.smoke), 3])
def test_dense_is_plain_ddp_bit_for_bit(run_each: RunEach, world: int) -> None:
    cases: list[dict[str, object]] = [
        {"how": how, "buckets": buckets} for how in ("disabled", "dense", "observe") for buckets in (1, 8)
    ]
    cases.append({"how": "observe", "buckets": 8, "steps": 12, "nan_at": 6})
    for case, results in run_each("same_as_ddp", world, cases):
        for result in results:
            assert result["agent"] == result["plain"], case


def test_an_observer_says_at_the_end_whether_it_is_the_network(run_ranks: RunRanks, tmp_path: Path) -> None:
    one, two = run_ranks("observed", 2)
    slow, fast = (one[link]["lines"][-3:] for link in ("20mbit", "none"))
    assert not any("Why:" in line for line in two["20mbit"]["lines"]), "rank 0 alone says it"
    assert re.match(r"Network: \d+ % of a step is exposed communication \(", slow[0]), slow
    assert slow[1].startswith("Why: 2 ranks exchange ")
    assert "the noise scale of the gradient is" in slow[1]
    # Which plan pays depends on how long this machine takes to encode.
    assert re.search(
        r"Next: send .*x fewer bytes with .*, each of which is expected to keep (9\d|100) % .* useful samples/s, "
        r"[\d.]+ times",
        slow[2],
    )
    assert not fast[0].startswith("Network: 9")
    with read_trace(tmp_path / "20mbit/journal.jsonl") as lines:
        windows = [line.record for line in lines if isinstance(line.record, WindowReport)]
    waited = sum(each.phases.communicate for each in windows)
    whole = sum(sum(each.phases.model_dump().values()) for each in windows)
    assert f"Network: {format_percent(waited / whole)} of a step" in slow[0]
    assert windows[-1].curve is not None
    for command in ("explain", "status"):
        done = CliRunner().invoke(main, [command, str(tmp_path / "20mbit/journal.jsonl")])
        assert "useful samples/s" in " ".join(done.output.split()), done.output
    assert done.exit_code == 0


@pytest.mark.parametrize(("compressor", "steps"), [("topk", 1000), ("randomk", 280)])
def test_a_thousand_steps_with_cf_switched_every_ten(
    run_ranks: RunRanks, compressor: str, steps: int
) -> None:
    """The second codec, which has a state, runs for four rounds of the seven CFs."""
    one, two = run_ranks("switching", 2, steps=steps, every=10, compressor=compressor)
    assert one["parameters"] == two["parameters"]
    assert one["buckets"] >= 8
    assert one["sent"] == two["sent"]
    assert {1.0, 10.0, 40.0, 160.0, 1000.0} <= set(one["sent"])
    assert math.isfinite(one["loss"])
    assert one["payload_bytes"] < 0.6 * one["dense_bytes"]  # CF 1, 1.5 and 3 are among the seven


def test_the_gain_is_of_gradient_and_residual_together(run_ranks: RunRanks) -> None:
    """Divided by the raw gradient alone it would be too high: with error feedback p is larger."""
    for result in run_ranks("true_gains", 3):
        assert result["buckets"] >= 4
        assert len(result["found"]) >= 12
        for agents, truth, _ in result["found"]:
            assert agents == pytest.approx(truth, rel=1e-3)
        assert result["found"][-1][2] > 1.5  # ‖p‖² over ‖gradient‖²


def test_the_gain_over_the_raw_gradient_is_at_most_1(run_ranks: RunRanks) -> None:
    """What GraVAC's released code divides by (``gravac:denominator=gradient``)."""
    for result in run_ranks("true_gains", 3, raw_gain=True, cf=100.0, steps=40):
        for agents, truth, _ in result["found"]:
            assert agents == pytest.approx(min(1.0, truth), rel=1e-3)
        assert max(truth for _, truth, _ in result["found"]) > 0.5
