"""The ranks follow the last valid decision, or are dense until a controller answers again."""

import pytest

from gravac.policies import StaticPolicy
from gravac_agent.reporting.connection import NoAnswer
from gravac_agent.reporting.decision_in_force import DecisionInForce
from tests.support.peer import SPEC

POLICY = StaticPolicy(cf=10)


def adopt(force: DecisionInForce, epoch: int) -> None:
    state = POLICY.start(epoch=epoch).state
    force.adopt(state.decision, state.model_dump_json(), 1)


def test_a_decision_that_arrives_while_dense_holds_from_the_recovery_on() -> None:
    force = DecisionInForce(SPEC)
    assert (force.dense, force.policy_state, force.directive.cf_candidate) == (False, None, 10.0)
    force.fall_back()
    adopt(force, 1)
    directive = force.directive
    assert force.dense
    assert (directive.epoch, directive.phase, directive.cf_candidate) == (0, "fallback", 1.0)
    force.recover()
    assert not force.dense
    assert (force.directive.epoch, force.directive.cf_candidate) == (1, 10.0)


def test_an_invalid_decision_changes_nothing() -> None:
    """Of a checkpoint's decision, too: its epoch is the least."""
    state = POLICY.start(epoch=5).state.model_dump_json()
    force = DecisionInForce(SPEC.model_copy(update={"policy_state": state}))
    before = force.directive
    assert before.epoch == 5
    for epoch in (4, 7):
        with pytest.raises(NoAnswer, match=f"epoch {epoch}, after epoch 5"):
            adopt(force, epoch)
    assert (force.directive, force.policy_state, force.dense) == (before, state, False)
    adopt(force, 6)
    assert force.directive.epoch == 6
