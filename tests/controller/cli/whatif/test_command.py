"""``gravac whatif``: what it says, draws and refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac.predict import Predictor, Recording
from gravac.traces import read_trace
from gravac_controller.cli import main
from tests.support.predicted import CFS, HOSTS, RANKS, trace

TRACES = Path(__file__).parents[3] / "traces"
KNOWN = ("--recorded-on", "200Mbit,100us")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace(tmp_path_factory.mktemp("whatif") / "journal.jsonl", noise=0.02)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["whatif", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def asked(*arguments: object) -> dict[str, object]:
    code, output = run(*arguments, "--json")
    assert code == 0, output
    return dict(json.loads(output))


def test_one_scenario_is_told_cf_by_cf(recorded: Path) -> None:
    code, output = run(recorded, *KNOWN, "--link", "50Mbit,0.2ms", "--ranks", 8)
    assert code == 0
    assert "On 50 Mbit/s, 200 µs, 8 ranks, topk:" in output
    for cf in ("dense", "4", "10", "30", "100", "1000"):
        assert any(line.split()[:1] == [cf] for line in output.splitlines()), cf
    assert sum(" * " in line for line in output.splitlines()) >= 1
    assert "Policy gravac:" in output
    assert "to have a baseline" in output
    assert "the effect of other than 4 ranks" in output


def test_without_options_it_tells_the_recorded_run(recorded: Path) -> None:
    answer = asked(recorded, *KNOWN)
    (scenario,) = answer["scenarios"]
    assert scenario["ranks"] == RANKS
    assert scenario["bandwidth_bits_per_second"] == 2e8
    assert {row["cf"] for row in scenario["factors"]} >= set(CFS)
    for row in scenario["factors"]:
        assert row["low_seconds"] < row["step_seconds"] < row["high_seconds"]
        parts = ("compute_seconds", "compress_seconds", "exposed_seconds", "decompress_seconds")
        assert sum(row[part] for part in parts) == pytest.approx(row["step_seconds"])
    assert scenario["path"]["seconds_to_useful_samples"] > 0


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace(tmp_path_factory.mktemp("divided") / "journal.jsonl", ranks=HOSTS.hosts, hosts=HOSTS)


def test_both_levels_of_links_are_shown_and_rates_are_those_of_a_hosts_link(divided: Path) -> None:
    answer = asked(divided)
    (scenario,) = answer["scenarios"]
    fitted = Predictor([(Recording.from_trace(read_trace(divided)), None)]).fit.network
    card = 8 * HOSTS.ranks * fitted.bytes_per_second
    assert scenario["bandwidth_bits_per_second"] == card
    assert answer["recorded"]["bandwidth_bits_per_second"] == card
    levels = answer["recorded"]["hosts"]
    assert (levels["hosts"], levels["ranks"]) == (3, 4)
    assert levels["inside_bytes_per_second"] == HOSTS.inside_bytes_per_second
    inside = {row["inside_seconds"] for row in scenario["factors"]}
    assert len(inside) == 1, "each plan is divided first"
    assert inside.pop() == pytest.approx(6 * 5e-5 + 1.5 * 16e6 / 4e8)
    between = {row["cf"]: row["between_seconds"] for row in scenario["factors"]}
    assert between[1.0] > 3 * between[30.0] > 0.0
    (faster,) = asked(divided, "--link", f"{10 * card:.0f}bit")["scenarios"]
    rows = {row["cf"]: row for row in faster["factors"]}
    assert rows[1.0]["between_seconds"] < 0.2 * between[1.0]
    assert rows[1.0]["inside_seconds"] == pytest.approx(6 * 5e-5 + 1.5 * 16e6 / 4e8)
    (given,) = asked(divided, "--recorded-on", f"{card:.0f}bit,100us")["scenarios"]
    assert given["bandwidth_bits_per_second"] == pytest.approx(card)
    assert given["factors"][0]["step_seconds"] == pytest.approx(
        scenario["factors"][0]["step_seconds"], rel=0.01
    )
    code, output = run(divided)
    assert code == 0
    assert (
        "3 hosts of 4 ranks, which divide each gradient: 60.3 ms a step inside a host (at 3.2 Gbit/s a rank), then "
        "each rank exchanges 1/4 of it. Rates are of a host's link, which its ranks share." in output
    )
    for head in ("Inside", "Between"):
        assert head in output
    code, output = run(divided, "--ranks", 6)
    assert code == 2
    assert "ranks=6: the job divides gradients among the 4 ranks of a host" in output


def test_one_level_of_links_has_no_other(recorded: Path) -> None:
    answer = asked(recorded, *KNOWN)
    assert answer["recorded"]["hosts"] is None
    assert {row["inside_seconds"] for row in answer["scenarios"][0]["factors"]} == {0.0}
    _, output = run(recorded, *KNOWN)
    assert "Inside" not in output
    assert "hosts of" not in output


def test_a_slower_network_takes_longer_and_wants_a_stronger_cf(recorded: Path) -> None:
    answer = asked(recorded, *KNOWN, "--link", "10Gbit,200M,10M", "--policy", "static:cf=100")
    best = [scenario["best_cf"] for scenario in answer["scenarios"]]
    dense = [scenario["factors"][0]["step_seconds"] for scenario in answer["scenarios"]]
    assert best == sorted(best)
    assert best[0] < best[-1]
    assert dense == sorted(dense)
    assert dense[-1] > 10 * dense[0]


def test_a_sweep_is_a_table(recorded: Path) -> None:
    code, output = run(recorded, *KNOWN, "--link", "100M,1G,10G", "--ranks", "2..8")
    assert code == 0
    assert sum("bit/s, 100 µs" in line for line in output.splitlines()) == 9


def test_another_codec_has_no_gain_unless_it_sends_the_largest(recorded: Path) -> None:
    (alike,) = asked(recorded, *KNOWN, "--compressor", "topk+bf16")["scenarios"]
    (other,) = asked(recorded, *KNOWN, "--compressor", "randomk")["scenarios"]
    assert alike["best_cf"] is not None
    assert {row["compression_throughput"] for row in other["factors"] if row["cf"] > 1} == {None}
    assert {row["gain"] for row in other["factors"] if row["cf"] > 1} == {None}
    assert other["path"] is None
    assert "whose gain is unknown" in other["path_unknown"]
    assert any("does not show what another codec keeps" in line for line in other["cannot_know"])
    by_cf = {row["cf"]: row["payload_bytes"] for row in alike["factors"]}
    (same,) = asked(recorded, *KNOWN)["scenarios"]
    assert all(by_cf[row["cf"]] < row["payload_bytes"] for row in same["factors"] if row["cf"] > 1)


def test_codecs_are_compared_as_plans(recorded: Path) -> None:
    """Under Adam seven levels at 10x learn as well as dense; Top-k 10x does not, at the same number of bytes."""
    options = (*KNOWN, "--link", "300M", "--codecs", "nearest:levels=7/topk+bf16@100")
    (scenario,) = asked(recorded, *options)["scenarios"]
    plans = {(row["codec"], row["cf"]) for row in scenario["factors"]}
    assert plans >= {("topk", 1), ("topk", 10), ("topk", 100), ("nearest:levels=7", 10.1), ("topk+bf16", 100)}
    best = max(scenario["factors"], key=lambda row: row["useful_samples_per_second"] or 0)
    assert (
        (scenario["best_codec"], scenario["best_cf"])
        == (best["codec"], best["cf"])
        == ("nearest:levels=7", 10.1)
    )
    for row in scenario["factors"]:
        useful = row["samples_per_second"] * row["efficiency"]
        assert row["useful_samples_per_second"] == pytest.approx(useful)
        assert row["efficiency_low"] <= row["efficiency"] <= row["efficiency_high"]
    code, output = run(recorded, *options)
    assert code == 0
    assert "7 levels *" in output


def test_the_plan_space_of_a_policy_is_compared(recorded: Path) -> None:
    (scenario,) = asked(recorded, *KNOWN, "--policy", "auto:plans=nearest:levels=7/topk+bf16@50")["scenarios"]
    plans = [(row["codec"], row["cf"]) for row in scenario["factors"]]
    assert plans == [("topk", 1), ("nearest:levels=7", 10.1), ("topk+bf16", 50)]
    assert {(stretch["codec"], stretch["cf"]) for stretch in scenario["path"]["stretches"]} >= {
        ("nearest:levels=7", 10.1)
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--link", "fast"), "'fast' is not a bandwidth"),
        (("--link", "100M,0"), "'0' is not a bandwidth"),
        (("--link", "100M,50hours"), "'50hours' is not a latency"),
        (("--link", ",".join(f"{rate}M" for rate in range(1, 100))), "give at most 64"),
        (("--ranks", "8..2"), "'8..2' is not a number of ranks from 1 to"),
        (("--ranks", "0"), "'0' is not a number of ranks from 1 to"),
        (("--policy", "static:cf=0"), "cf"),
        (("--policy", "best"), "policy='best' is unknown"),
        (("--compressor", "zip"), "'zip' is unknown"),
        (("--codecs", "zip"), "'zip' is unknown"),
        (("--codecs", "topk@much"), "must be a codec with a CF above 1"),
        (("--compressor", "powersgd:rank=2"), "shapes of the parameters"),
        (("--recorded-on", "200Mbit,slow"), "'slow' is not a latency"),
    ],
)
def test_bad_options_are_named_with_the_fix(recorded: Path, options: tuple[str, str], expected: str) -> None:
    code, output = run(recorded, *options)
    assert code == 2
    assert expected in " ".join(output.split())
    assert options[0] in output


def test_a_trace_without_windows_says_what_to_record(tmp_path: Path) -> None:
    code, output = run(trace(tmp_path / "journal.jsonl", cfs=()))
    assert code == 2
    assert "none of its 0 windows has 3 settled steps" in output


def test_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"\x1b[31mnonsense\n")
    code, output = run(path)
    assert code == 2
    assert output.startswith(f"Error: {path} line 1: ")
    assert "\x1b" not in output


def test_a_folder_is_its_journal(recorded: Path) -> None:
    assert asked(recorded.parent, *KNOWN)["recorded"] == asked(recorded, *KNOWN)["recorded"]


def test_an_aggregator_of_several_rounds_is_predicted_where_it_was_recorded() -> None:
    trace = TRACES / "lm-powersgd.jsonl.gz"
    answer = asked(trace, "--link", "100M")
    (scenario,) = answer["scenarios"]
    cfs = {1.0, *(each["cf"] for each in answer["recorded"]["sent"])}
    assert [row["cf"] for row in scenario["factors"]] == sorted(cfs)
    assert scenario["factors"][-1]["collective"] == "rounds"


@pytest.mark.parametrize(
    "trace", sorted((Path(__file__).parents[3] / "traces").glob("*.gz")), ids=lambda path: path.name
)
def test_real_traces_are_answered(trace: Path) -> None:
    """Whatever task, codec, network and faults: with a range about each step, as wide as the trace is noisy."""
    (scenario,) = asked(trace, "--link", "100M", "--ranks", 4)["scenarios"]
    for row in scenario["factors"]:
        assert 0 < row["low_seconds"] < row["step_seconds"] < row["high_seconds"] < 100
    assert scenario["best_cf"] is not None


def test_a_codec_with_few_sizes_is_predicted_at_these(recorded: Path) -> None:
    answer = asked(recorded, *KNOWN, "--compressor", "int8")
    scenario = answer["scenarios"][0]  # type: ignore[index]
    assert [each["cf"] for each in scenario["factors"]] == [1.0, 3.9]
