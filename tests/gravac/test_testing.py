"""``gravac.testing``: what passes, what fails, and the message of a failure. In another project: test_packaging."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gravac.policies import parse
from gravac.protocol import Decision
from gravac.testing import assert_decisions
from gravac.traces import TraceError
from gravac_controller.cli import main
from tests.support.traces_made import make, make_of_world, records, write
from tools.harness.plan_world import World

PAGE = (Path(__file__).parents[2] / "docs/testing.md").read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "run.jsonl"
    make(made, "gravac", windows=9)
    return made


def test_the_recorded_policy_passes_to_the_byte(path: Path) -> None:
    assert assert_decisions(path, exact=True).windows == 9


def test_settings_that_change_nothing_pass_but_not_to_the_byte(path: Path) -> None:
    assert_decisions(path, settings={"epsilon": 0.31})
    with pytest.raises(AssertionError, match=r"run\.jsonl: 10 decisions differ in 9 windows"):
        assert_decisions(path, settings={"epsilon": 0.31}, exact=True)


def test_words_alone_fail_only_to_the_byte(path: Path) -> None:
    pieces = records(parse("gravac"), 4)
    last = pieces[4][1]
    assert isinstance(last, Decision)
    write(
        path.with_name("b.jsonl"),
        [*pieces[:4], (pieces[4][0], last.model_copy(update={"reason": "Because."}))],
    )
    assert_decisions(path.with_name("b.jsonl"))
    with pytest.raises(AssertionError, match=r"recorded: CF .*: Because"):
        assert_decisions(path.with_name("b.jsonl"), exact=True)


def test_a_failure_says_window_step_both_decisions_and_why(path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_decisions(path, "static:cf=40")
    text = str(caught.value)
    assert text.startswith("run.jsonl: 10 decisions differ in 9 windows.")
    assert "policy now:      static: cf=40.0" in text
    assert "at the start:\n  recorded: CF 1, warmup, start: First 2 dense windows" in text
    assert "after window 2, step 149 (measured at CF 10):" in text
    assert "  now:      CF 40, hold, fixed: The static policy holds CF 40" in text
    assert "and after windows 4, 5, 6, 7, 8" in text
    assert "not at those of the other policy" in text


def test_damage_and_unknown_policies_are_named(path: Path) -> None:
    with pytest.raises(ValueError, match="has no setting 'epsilno'"):
        assert_decisions(path, settings={"epsilno": 1})
    path.write_bytes(path.read_bytes().replace(b'"loss":2.25', b'"loss":2.26', 1))
    with pytest.raises(TraceError, match="line 3: was altered"):
        assert_decisions(path)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adam-aged"])
@pytest.mark.parametrize("megabits", [30.0, 100.0, 10_000.0])
def test_the_example_of_the_page_passes_on_a_trace_of_the_default_policy(
    kind: str, megabits: float, tmp_path: Path
) -> None:
    make_of_world(tmp_path / "run.jsonl", World(kind=kind, megabits=megabits), 30)
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    example: dict[str, Any] = {}
    exec(code, example)
    tests = [test for name, test in example.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test(lambda name: tmp_path / f"{name}.jsonl")


def test_the_failure_of_the_page_is_what_the_default_policy_gives(tmp_path: Path) -> None:
    make_of_world(tmp_path / "run.jsonl", World(kind="adam"), 30)
    with pytest.raises(AssertionError) as caught:
        assert_decisions(tmp_path / "run.jsonl", settings={"bound": 0.01})
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
    pattern = ".*".join(map(re.escape, shown.strip().split("…")))
    assert re.fullmatch(pattern, str(caught.value), re.DOTALL), caught.value


def test_the_commands_of_the_page_fit_the_default_policy(tmp_path: Path) -> None:
    make_of_world(tmp_path / "journal.jsonl", World(kind="adam"), 30)
    asked = re.findall(r"^gravac replay gravac-runs/my-job (--\w+) (\S+)$", PAGE, re.M)
    assert len(asked) == 2
    for option, value in asked:
        done = CliRunner().invoke(main, ["replay", str(tmp_path), option, value])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        assert done.exit_code in (0, 1), done.output
        assert "30 windows" in done.output, done.output
