"""Policy gravac on the T_comp figures of the GraVAC paper (``lab/benchmarks/paper_search.py``)."""

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "lab" / "benchmarks")
    import paper_search  # type: ignore[import-not-found]

    assert isinstance(paper_search, ModuleType)
    return paper_search


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_gravac_ends_within_5_percent_of_the_best_on_every_figure(program: ModuleType, noise: float) -> None:
    rows = program.rows(noise, range(10 if noise else 1))
    assert len({row.figure for row in rows}) == len(program.FIGURES) == 7
    for row in rows:
        if row.policy == "gravac":
            assert row.share >= 0.95, row
            assert row.windows <= 11, row  # two dense ones, and one a rung


def test_t_comp_is_that_of_the_paper_and_every_gain_passes(program: ModuleType) -> None:
    for figure in program.FIGURES:
        for shape in program.GAINS:
            cluster = program.Published(figure=figure, shape=shape)
            for cf, published in figure.t_comp.items():
                assert cluster.t_comp(cf) == pytest.approx(published)
                assert cluster.gain(cf) >= figure.epsilon
