"""Rows of a tournament: read, compared with dense and alone of the same seed, and put in order."""

from pathlib import Path

from gravac_lab.tournament import SeedSpread, read_rows, standings
from lab.tests.support.tournament import row, written


def test_each_seed_is_compared_with_its_own_dense_and_alone(tmp_path: Path) -> None:
    """The final losses of seed 2 are ten times those of seed 1; mixed up, no figure would be right."""
    sums = {"gradient_sq": 4.0, "residual_dot_gradient": 1.0, "sent_sq": 4.0, "compensated_sq": 8.0}
    rows = []
    for seed, scale in ((1, 1.0), (2, 10.0)):
        rows += [
            row(
                "topk@10", [scale * loss for loss in (4, 4, 3.5, 3, 2)], seed, 200.0, sums=sums, progress=0.75
            ),
            row("alone", [scale * loss for loss in (5, 5, 4, 4, 3)], seed, 0.0),
            row("dense", [scale * loss for loss in (4, 3, 2, 2, 1)], seed),
        ]
    found = standings(read_rows([written(tmp_path, *rows)]), lambda run: 2.0 if run.plan == "dense" else 0.5)
    assert [one.plan for one in found] == ["dense", "topk@10", "alone"]
    dense, plan, alone = found
    assert plan.above_dense == SeedSpread(1.0, 1.0, 1.0, 2)
    assert plan.retained == SeedSpread(0.5, 0.5, 0.5, 2)
    assert plan.efficiency == SeedSpread((20 / 40 + 30 / 50) / 2, 0.55, 0.55, 2)
    assert plan.loss == SeedSpread(11.0, 2.0, 20.0, 2)
    assert (plan.backlog, plan.gain, plan.progress) == (
        SeedSpread(0.25, 0.25, 0.25, 2),
        SeedSpread(0.5, 0.5, 0.5, 2),
        SeedSpread(0.75, 0.75, 0.75, 2),
    )
    assert (dense.wire_cf, plan.wire_cf, alone.wire_cf) == (1.0, 20.0, None)
    assert dense.speedup == SeedSpread(1.0, 1.0, 1.0, 2)
    assert dense.seconds == SeedSpread(2.0 * 47.5, 95.0, 95.0, 2)
    assert (plan.reached, plan.seconds, plan.speedup) == (0, None, None)


def test_without_dense_or_alone_figures_are_unknown_not_wrong(tmp_path: Path) -> None:
    (only,) = standings(read_rows([written(tmp_path, row("topk@10", [2.0, 1.0]))]))
    assert only.loss == SeedSpread(1.0, 1.0, 1.0, 1)
    assert (only.above_dense, only.efficiency, only.retained, only.seconds) == (None,) * 4
