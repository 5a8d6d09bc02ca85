"""How many steps late gradients are behind dense: interpolated, by the runs of the study."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import young

DENSE = [[10, 3.0, 0.0, 0.0], [20, 2.0, 0.0, 0.0], [30, 1.5, 0.0, 0.0]]


@pytest.mark.parametrize(("loss", "step"), [(3.5, 10), (3.0, 10), (2.5, 15.0), (1.5, 30.0), (1.4, None)])
def test_the_step_at_which_dense_reaches_a_loss(loss: float, step: float | None) -> None:
    assert young.dense_step(DENSE, loss) == step


def test_steps_behind_are_those_of_the_nearest_point() -> None:
    late = [[10, 3.2, 0.0, 0.0], [22, 2.5, 0.0, 0.0]]
    assert young.behind(DENSE, late, 20) == pytest.approx(7.0)
    assert young.behind(DENSE, late, 100) is None, "no point near it"


def test_in_the_study_123x_begins_behind_and_25x_does_not() -> None:
    """By step 30."""
    lines = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[2]
        for line in young.table(young.read_lines(young.ROWS))[2:]
    }
    first = {plan: float(cell.split()[0]) for plan, cell in lines.items()}
    assert first["123x"] > 0.0 > first["64x"] > first["25x"]
