"""The efficiencies that codecs state are what the committed runs say, and the fit reads runs as windows are read."""

from dataclasses import replace
from pathlib import Path

import pytest

from gravac import offers
from gravac.offers import EfficiencyRow
from gravac.protocol import GainSums
from gravac.signals import efficiency
from lab.tests.support.tournament import run
from tools.pages.efficiency import late_table, runs_of_the_table, table

ENERGIES = ("compensated_sq", "sent_sq", "minimum_sq", "candidate_sq", "residual_sq")
NOTHING = GainSums(steps=0, gradient_sq=1.0, residual_dot_gradient=0.0, **dict.fromkeys(ENERGIES, 1.0))


def test_offers_are_made_of_the_committed_runs() -> None:
    """``python -m tools.pages.efficiency`` prints them."""
    made = table(runs_of_the_table())
    assert late_table()
    for (codec, kind), kept in late_table().items():
        assert offers.of(codec).rows(kind) == tuple(
            EfficiencyRow(cf, *three) for cf, three in kept.items()
        ), codec
    for (codec, kind), kept in made.items():
        assert offers.of(codec).rows(kind) == tuple(
            EfficiencyRow(cf, *three) for cf, three in kept.items()
        ), codec
    stated = {name for name, offer in offers.own().items() if offer.sgd or offer.adam}
    assert stated | {"topk+twobit"} == {codec for codec, _ in made}


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [("adamw-aged", "adam-aged"), ("adamw-low-beta", "adam-low-beta"), ("adamw", "adam")],
)
def test_the_fit_reads_runs_as_the_service_reads_windows(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, kind: str
) -> None:
    """Also where gradients may come late: a third of the way and a backlog of .3 say nothing of these."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from efficiency_fit import points, predicted  # type: ignore[import-not-found]
    from regret_parts.limits import Option, by_windows  # type: ignore[import-not-found]

    losses, raw = (5.0, 4.0, 3.0, 2.0, 1.0), {"raw_sq": 1.0, "raw_dot_next": 0.2}
    sums = {"gradient_sq": 1.0, "residual_dot_gradient": 0.3, "sent_sq": 0.5, "compensated_sq": 1.0} | raw
    dense = replace(run("dense", losses), optimizer=optimizer)
    late = replace(dense, plan="topk+twobit@16.6", sums=sums, progress=0.35)
    (point,) = points([dense, late])
    table = efficiency.expected("topk+twobit", 16.6, kind)
    shown = {"progress_steps": 50, "reference_sq": 1.0, "moved_dot_reference": 0.35, "raw_mean_sq": 1.0}
    window = {"residual_dot_gradient": 0.3, "raw_dot_next": 0.2, "steps": 50, **shown}
    found = efficiency.measured(NOTHING.model_copy(update=window), "topk+twobit", 16.6, kind)
    assert table is not None
    assert found is not None
    constants = efficiency.PER_LATE, efficiency.PER_LOST
    known = [replace(point, task="other", efficiency=table.likely)]
    assert predicted(point, constants, known) == pytest.approx(found.likely)
    option = Option(run=late, seconds=1.0, time=1.0, efficiency=None, above_dense=0.0, confirmed=None)
    assert by_windows(option).likely == pytest.approx(found.likely)
