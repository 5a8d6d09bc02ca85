"""What is no order of an operator: a codec without a pin, for one."""

import pytest
from pydantic import ValidationError

from gravac.protocol import Order, Override


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "pin"},
        {"action": "dense", "cf": 10.0},
        {"action": "resume", "cf": 1.0},
        {"action": "pin", "cf": 0.5},
        {"action": "stop"},
        {"action": "dense", "actor": ""},
        {"action": "dense", "actor": "a\nb"},
        {"action": "dense", "actor": "a" * 65},
        {"action": "dense", "note": "x" * 301},
        {"action": "pin", "cf": "10"},
    ],
)
def test_what_is_no_order(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Order.model_validate({"actor": "alice"} | wrong)


def test_only_a_pin_names_a_codec() -> None:
    with pytest.raises(ValueError, match="codec must be given with nothing but pin"):
        Override(action="dense", codec="qsgd", actor="alice", epoch=0)
