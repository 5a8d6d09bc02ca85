"""A controller proves that it knows a token, and never sends it."""

from pathlib import Path

import pytest

from gravac import proof
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed

AGENT = "an-agents-token-0123456789abcdef"
OPERATOR = "an-operators-token-0123456789abc"


def test_a_controller_proves_both_tokens_to_anyone(tmp_path: Path) -> None:
    env = {
        "GRAVAC_TOKEN": AGENT,
        "GRAVAC_CONTROLLER_CONTROL_TOKEN": OPERATOR,
        "GRAVAC_CONTROLLER_LOOK_NEEDS_TOKEN": "true",
    }
    controller = Controller(tmp_path / "runs", env=env)
    try:
        challenge = proof.new_challenge()
        answer = controller.ask("GET", f"{proof.PATH}?challenge={challenge}")
        assert answer.status == 200
        proofs = answer.json["proofs"]
        for token in (AGENT, OPERATOR):
            assert proof.proves(token, challenge, proofs)
            assert not proof.proves(token, proof.new_challenge(), proofs)  # of another challenge
            assert token.encode() not in answer.body
        assert not proof.proves("another-token-0123456789", challenge, proofs)
        assert controller.ask("GET", "/v1/jobs").status == 401  # all else still needs the token
        for wrong in (
            "",
            "?challenge=",
            "?challenge=xy",
            f"?challenge={challenge[:-1]}",
            f"?challenge={challenge}0",
        ):
            assert controller.ask("GET", proof.PATH + wrong).status == 422, wrong
    finally:
        controller.stop()


def test_a_controller_without_a_token_proves_nothing(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "runs")
    try:
        answer = controller.ask("GET", f"{proof.PATH}?challenge={proof.new_challenge()}")
        assert (answer.status, answer.json) == (200, {"proofs": []})
    finally:
        controller.stop()


@pytest.mark.parametrize("proofs", [[], [""], ["é" * 64], ["0" * 64]])
def test_invalid_proofs(proofs: list[str]) -> None:
    assert not proof.proves(AGENT, proof.new_challenge(), proofs)
