"""``gravac doctor``: compresses where it pays, and says so where it does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gravac import offers
from gravac.predict import Predictor, Recording
from gravac.predict.advice import other_optimizers
from gravac.signals import efficiency
from gravac.signals.efficiency import LEAST_KEPT
from gravac.traces import read_trace
from gravac.wording import format_number, plan_in_words
from gravac_controller.cli import main
from tests.support.predicted import HOSTS, job_trace, trace

JOB = ("--ranks", "4", "--elements", "3.5e6", "--compute", "0.25")


def asked(*words: object) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["doctor", *map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def in_words(result: dict[str, Any]) -> str:
    chosen = next(row for row in result["rows"] if row["plan"] == result["chosen"])
    return plan_in_words(chosen["codec"], chosen["cf"])


def test_a_slow_link_is_worth_compressing_for_and_a_fast_one_is_not() -> None:
    slow = asked(*JOB, "--link", "100mbit", "--optimizer", "sgd")
    assert slow["compress"]
    assert slow["verdict"].startswith("Compress: a dense step takes ")
    assert slow["next"].startswith(
        f"send 12.7x fewer bytes with {slow['chosen']} ({in_words(slow)}): steps of "
    )
    assert (slow["kind"], slow["severity"]) == ("compress", "high")
    dense, *others = slow["rows"]
    assert (dense["plan"], dense["speedup"]) == ("dense", 1.0)
    assert dense["step_seconds"] == pytest.approx(0.25 + 1.5 * 14e6 / (12.5e6 * 0.956), rel=0.1)
    best = next(row for row in others if row["plan"] == slow["chosen"])
    assert best["speedup"] == max(row["speedup"] for row in slow["rows"] if row["keeps_bound"])
    for row in others:
        likely = efficiency.expected(row["codec"], row["cf"], "sgd")
        assert likely is not None
        assert row["efficiency"] == likely.likely
        assert row["speedup"] == pytest.approx(dense["step_seconds"] / row["step_seconds"] * likely.likely)
        assert row["keeps_bound"] == (likely.likely >= 0.98)
    fast = asked(*JOB, "--link", "100gbit", "--optimizer", "sgd")
    assert not fast["compress"]
    assert fast["chosen"] == "dense"
    assert fast["verdict"].startswith("Do not compress: a dense step takes ")
    assert fast["kind"] == "stay dense"


def test_the_bound_and_the_optimizer_decide_which_plan() -> None:
    bounded, free = (asked(*JOB, "--link", "10mbit", "--optimizer", "sgd", "--bound", b) for b in (0.001, 1))
    chosen = {row["plan"]: row for row in free["rows"]}
    assert chosen[free["chosen"]]["speedup"] > chosen[bounded["chosen"]]["speedup"]
    assert f"{free['chosen']} ({in_words(free)}) is predicted to be" in bounded["next"]
    assert chosen[free["chosen"]]["efficiency"] >= LEAST_KEPT, "an unlimited bound is no license to lose half"
    fastest = max(free["rows"], key=lambda row: row["speedup"])
    assert fastest["speedup"] > chosen[free["chosen"]]["speedup"]
    for found in (free, bounded):
        assert found["why"].startswith(f"{fastest['plan']} ("), (
            "the best of the table is named, and why it is not advised"
        )
        assert "times as fast as dense, but is not advised at any bound" in found["why"]
    adam = asked(*JOB, "--link", "10mbit", "--optimizer", "adamw", "--bound", 1)
    others = {row["plan"]: row["efficiency"] for row in adam["rows"]}
    assert any(row["efficiency"] > others.get(plan, 1.0) for plan, row in chosen.items()), (
        "Adam loses more by some"
    )


def test_what_another_optimizer_would_bring_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same choice under the same bound, so its figures are those of runs that name that optimizer."""
    words = (*JOB, "--link", "30mbit", "--bound", "0.04", "--optimizer")
    # Of many ranks, those of gravac.optim exchange with ``owners``, and those of torch's AdamW do not.
    many = (*JOB[2:], "--ranks", "16", *words[len(JOB) :])
    plain, aged = (asked(*many, kind) for kind in ("adamw", "adamw-aged"))
    assert f"predicted to be {times(aged, plain)} times as fast" in plain["other_optimizers"]
    plain, aged = asked(*words, "adamw"), asked(*words, "adamw-aged")
    others = plain["other_optimizers"]
    assert others == (
        f"With gravac.optim.AdamW, training is predicted to be {times(aged, plain)} times as fast as with the best "
        f"plan for torch's AdamW. It then sends {chosen_of(aged)['plan']}, which is expected to keep 99 % of the "
        "progress."
    )
    tight, late = (asked(*JOB, "--link", "30mbit", "--optimizer", name) for name in ("adamw", "adamw-aged"))
    assert tight["other_optimizers"].startswith(
        f"With gravac.optim.AdamW, training is predicted to be {times(late, tight)} times as fast as with the best "
        f"plan for torch's AdamW. It then sends {chosen_of(late)['plan']}, "
    )
    printed = CliRunner().invoke(main, ["doctor", *words, "adamw"]).output
    assert others in " ".join(printed.split())
    fast = (*JOB, "--link", "100gbit", "--optimizer", "adamw")
    for nothing in (
        fast,
        *((*words, name) for name in ("adamw-aged", "adamw-low-beta", "sgd", "lamb", "other")),
    ):
        assert asked(*nothing)["other_optimizers"] is None

    # Of a smaller β₁ it speaks where simulations of one show that every task bears it.
    bears = replace(offers.of("topk+twobit"), low_beta={5.1: (0.95, 0.98, 1.0)})
    monkeypatch.setitem(offers._REGISTERED, "topk+twobit", bears)
    offers.of.cache_clear()
    tight = asked(*JOB, "--link", "30mbit", "--optimizer", "adamw")
    low = asked(*JOB, "--link", "30mbit", "--optimizer", "adamw-low-beta")
    assert "With betas=(0.5, …) in AdamW, training is predicted to be " in tight["other_optimizers"]
    sent = f"It then sends {chosen_of(low)['plan']}, which is expected to keep 98 % of the progress."
    assert sent in tight["other_optimizers"]
    assert f" {times(low, tight)} " in tight["other_optimizers"]
    assert tight["other_optimizers"].endswith("compare held-out losses (docs/adam.md).")
    monkeypatch.undo()
    offers.of.cache_clear()


def test_of_an_optimizer_that_was_never_simulated_it_promises_nothing() -> None:
    """No plan is expected to keep anything, so it advises none, and says why."""
    words = (*JOB, "--link", "100mbit")
    for name in ("other", "lion"):
        result = asked(*words, "--optimizer", name)
        assert [row["plan"] for row in result["rows"]] == ["dense"]
        assert not result["compress"]
        assert "no optimizer of this kind was simulated" in result["verdict"]
        assert "slower" not in result["verdict"]
    assert asked(*words)["rows"] == asked(*words, "--optimizer", "lamb")["rows"], "not named: as under Adam"


def chosen_of(result: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in result["rows"] if row["plan"] == result["chosen"])


def times(other: dict[str, Any], plain: dict[str, Any]) -> str:
    return format_number(chosen_of(other)["speedup"] / chosen_of(plain)["speedup"])


def test_of_a_trace_it_says_what_another_optimizer_would_bring(tmp_path: Path) -> None:
    """By the windows of the job, and by nothing where the job's own optimizer leaves nothing to say."""
    path = job_trace(tmp_path / "journal.jsonl")
    found = asked(path)["other_optimizers"]
    recorded = Recording.from_trace(read_trace(path))
    assert found == other_optimizers(recorded) != ""
    assert "With gravac.optim.AdamW, training is predicted to be " in found
    faster, plain = asked(path, "--link", "200mbit"), asked(path)
    assert faster["other_optimizers"] != plain["other_optimizers"], "it is predicted for the network"
    for kind in ("adam-aged", "adam-low-beta"):
        assert asked(job_trace(tmp_path / kind, kind))["other_optimizers"] is None
    for name, changes in {"forgets": {"memory": "none"}, "unknown": {"optimizer": None}}.items():
        assert other_optimizers(Recording.from_trace(read_trace(job_trace(tmp_path / name, **changes)))) == ""


def test_of_a_trace_with_two_levels_a_rate_is_that_of_a_hosts_link(tmp_path: Path) -> None:
    path = trace(tmp_path / "journal.jsonl", ranks=HOSTS.hosts, hosts=HOSTS)
    fitted = Predictor([(Recording.from_trace(read_trace(path)), None)]).fit.network
    found, card = asked(path), 8 * HOSTS.ranks * fitted.bytes_per_second
    assert found["bits_per_second"] == card
    assert any(
        note.startswith("3 hosts of 4 ranks, which divide each gradient: 60.3 ms a step inside")
        for note in found["notes"]
    )
    same = asked(path, "--link", f"{card:.0f}bit")
    assert same["rows"][0]["step_seconds"] == pytest.approx(found["rows"][0]["step_seconds"], rel=0.01)


def test_a_trace_tells_steps_ranks_and_network(tmp_path: Path) -> None:
    """A link of the user's changes the answer of the same trace."""
    path = trace(tmp_path / "journal.jsonl", noise=0.02)
    found, slow, fast = asked(path), asked(path, "--link", "5mbit"), asked(path, "--link", "100gbit")
    assert found["ranks"] == slow["ranks"] == 4
    assert found["trace"] == str(path)
    assert slow["rows"][0]["step_seconds"] > 5 * found["rows"][0]["step_seconds"]
    assert (slow["compress"], fast["compress"]) == (True, False)
    assert {"topk", "nearest:levels=7"} <= {row["codec"] for row in slow["rows"]}
    assert any("does not name the optimizer" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give a TRACE, or the size of the model"),
        (("--elements", "1e6"), "give a TRACE, or the size of the model"),
        (JOB, "and the network: --elements 25e6"),
        (
            ("tests/traces/mlp-loopback.jsonl.gz", "--elements", "1e6"),
            "--elements is for a job without a trace",
        ),
        (("pyproject.toml",), "pyproject.toml"),
        ((*JOB, "--link", "fast"), "'fast' is not a bandwidth"),
        ((*JOB, "--link", "1gbit", "--elements", "many"), "'many' is not a number of elements"),
    ],
)
def test_errors_say_what_to_give(words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[4])
    done = CliRunner().invoke(main, ["doctor", *words])
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_one_amount_of_bytes_tells_nothing_of_an_unknown_network(tmp_path: Path) -> None:
    """Waiting for a late rank looked like a slow link, and dense steps 30 times as long as they were."""
    path = trace(tmp_path / "one.jsonl", cfs=(10.0,))
    done = CliRunner().invoke(main, ["doctor", str(path)])
    assert done.exit_code == 2, done.output
    says = "so it does not tell how long other bytes take: name the network, as in --link 1gbit"
    assert says in " ".join(done.output.split())
    assert asked(path, "--link", "100mbit")["bits_per_second"] == 1e8
    assert asked(trace(tmp_path / "two.jsonl", cfs=(1.0, 10.0)))["rows"]
    alone = job_trace(tmp_path / "job.jsonl", cfs=(10.0,), link=None)
    assert other_optimizers(Recording.from_trace(read_trace(alone))) == ""


def test_the_table_marks_the_plan_that_is_advised() -> None:
    done = CliRunner().invoke(main, ["doctor", *JOB, "--link", "100mbit", "--optimizer", "sgd"])
    assert done.exit_code == 0, done.output
    (marked,) = [line for line in done.output.splitlines() if " * " in line]
    assert marked.split()[-1] == "yes"
    assert "links of 100 Mbit/s" in done.output
