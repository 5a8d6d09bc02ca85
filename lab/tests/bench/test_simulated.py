"""Times to target are in simulated time."""

import pytest

from gravac_lab.bench.simulated import compared
from lab.tests.cli.test_simulate import row


def test_times_to_target_are_in_simulated_time() -> None:
    """The second half of the fast job takes a tenth of the time; the job alone never gets there."""
    dense = row("dense", [[10, 10.0, 3.0, 0.1], [20, 20.0, 1.0, 0.5]])
    fast = row("fast", [[10, 10.0, 3.0, 0.1], [20, 11.0, 1.0, 0.6]], 40.0)
    lone = row("alone", [[10, 1.0, 4.0, 0.1], [20, 2.0, 2.0, 0.2]], 0.0)
    answer = compared([fast, dense, lone])
    assert answer["target_loss"] == pytest.approx(1.2)
    assert [one["seconds_to_target"] for one in answer["rows"]] == [
        pytest.approx(10.9),
        pytest.approx(19),
        None,
    ]
    assert [one["speedup"] for one in answer["rows"]] == [pytest.approx(19 / 10.9), 1.0, None]
    assert [one["retained"] for one in answer["rows"]] == [1.0, 1.0, 0.0]
    assert [one["wire_cf"] for one in answer["rows"]] == [10.0, 1.0, None]
    assert answer["rows"][0]["efficiency"] == 1.0
    assert answer["rows"][0]["plans"] == [{"first_step": 0, "codec": "dense", "cf": 1.0, "reason": "why"}]
