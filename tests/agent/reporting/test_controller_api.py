"""Decisions are followed within the bounds of the job alone."""

import contextlib

import pytest

from gravac.policies import StaticPolicy
from gravac.protocol import WindowAnswer
from gravac_agent.reporting.connection import NoAnswer
from gravac_agent.reporting.controller_api import DecisionChecker, read_answer
from tests.support.scripted import Play, ScriptedPolicy

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.mark.parametrize(
    ("epoch", "decided", "valid"),
    [
        (7, 0, True),
        (8, 0, False),
        (8, 1, True),
        (9, 1, False),
        (6, 5, False),
        (2**48, None, True),
        (2**48 + 1, None, False),
    ],
)
def test_an_epoch_grows_by_at_most_one_for_each_window_decided(
    epoch: int, decided: int | None, valid: bool
) -> None:
    policy = StaticPolicy(cf=10)
    checker = DecisionChecker(policy, None if decided is None else policy.start(epoch=7).decision)
    state = policy.start(epoch=epoch).state
    with contextlib.nullcontext() if valid else pytest.raises(NoAnswer, match=f"epoch {epoch}"):
        checker.accept(state.decision, state.model_dump_json(), decided)


@pytest.mark.parametrize(
    ("codec", "valid"), [(None, True), ("qsgd", True), ("powersgd", True), ("topk", False), ("int4", False)]
)
def test_a_decision_sends_only_with_what_the_ranks_have_built(codec: str | None, valid: bool) -> None:
    checker = DecisionChecker(ScriptedPolicy(Play("qsgd", 8.0), also=("powersgd",)))
    state = ScriptedPolicy(Play(codec, 8.0)).start().state
    with contextlib.nullcontext() if valid else pytest.raises(NoAnswer, match=f"codec '{codec}'; besides"):
        checker.accept(state.decision, state.model_dump_json(), 0)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ((0.5, 8.0, "qsgd"), None),
        ((0.5, 1.0, None), None),
        ((0.5, 9.0, None), r"trial.cf 9, above the job's bound of 8$"),
        ((0.5, 8.0, "int4"), r"codec 'int4'; besides"),
        ((0.0, 8.0, None), r"trial.step_seconds 0, which every step exceeds"),
    ],
)
def test_a_trial_stays_within_the_bounds_of_the_job(
    trial: tuple[float, float, str | None], words: str | None
) -> None:
    class Bounded(ScriptedPolicy):
        def ladder(self) -> tuple[float, ...]:
            return (1.0, 8.0)

    checker = DecisionChecker(Bounded(Play("qsgd", 8.0)))
    state = ScriptedPolicy(Play("qsgd", 8.0, None, trial)).start().state
    with contextlib.nullcontext() if words is None else pytest.raises(NoAnswer, match=words):
        checker.accept(state.decision, state.model_dump_json(), 0)


@pytest.mark.parametrize("seconds", ["NaN", "1e400", "-1.0"])
def test_a_trial_without_a_finite_limit_is_no_answer(seconds: str) -> None:
    state = ScriptedPolicy(Play(None, 8.0, None, (0.5, 4.0, None))).start().state
    answer = WindowAnswer(decision=state.decision, policy_state="").model_dump_json()
    assert "0.5" in answer
    with pytest.raises(NoAnswer, match=r"decision\.trial\.step_seconds"):
        read_answer(WindowAnswer, answer.replace("0.5", seconds).encode())
