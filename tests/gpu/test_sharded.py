"""FSDP2 on two ranks: gradients go through the streams of a GPU, and shards must be those of the CPU, to the bit."""

import math
from collections.abc import Callable

import pytest

from tests.support.gpu.cases import SHARDED, Runs
from tests.support.gpu.places import CPU, NCCL, Place, on
from tests.support.lab import needs_lab
from tools.gpu.figures import Figure

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@on(CPU, NCCL)
@pytest.mark.parametrize("name", [name for name, (scenario, _) in SHARDED.items() if scenario == "sharded"])
def test_a_sharded_model_trains_as_on_the_cpu(runs: Runs, place: Place, name: str) -> None:
    found, expected = runs.results(*place, 2, name), runs.results(*CPU, 2, name)
    assert [one["parameters"] for one in found] == [one["parameters"] for one in expected]
    for one in found:
        assert one["finite"]
        assert one["executor"] == ("HostExecutor" if place == CPU else "StreamExecutor")
        assert (one["compression"] > 1.5) == (name != "sharded, dense")


@needs_lab
@on(CPU, NCCL)
def test_what_a_sharded_step_takes(
    runs: Runs, place: Place, record_property: Callable[[str, object], None]
) -> None:
    """Figures, for ``make gpu``; those of a tiny model on the CPU say nothing."""
    figures = [Figure(**figure) for figure in runs.results(*place, 2, "steps of a sharded model")[0]]
    for figure in figures:
        record_property("figure", figure.line())
    assert len(figures) == 5
    assert all(math.isfinite(figure.value) for figure in figures)
