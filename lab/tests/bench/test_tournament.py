"""Presets are plans that exist."""

from pathlib import Path

from gravac_lab.bench.tournament import PRESETS, Tournament


def test_presets_are_plans_that_exist() -> None:
    from gravac_lab.simulate.plans import parse

    asked = Tournament(
        tasks=(), plans=("frontier", "topk@10", "rivals"), ranks=(), seeds=(), steps=1, out=Path()
    )
    every = asked.every_plan()
    assert len(every) == len(set(every))
    assert set(every) == {"topk@10", *PRESETS["frontier"], *PRESETS["rivals"]}
    for plan in every:
        assert parse(plan).cf > 1.0
