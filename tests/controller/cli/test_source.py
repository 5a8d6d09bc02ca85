"""Where a command looks: a trace is read window by window."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from gravac_controller.cli.source import FromTrace
from gravac_controller.views.models import WindowView
from tests.support.efficiencies import fixed_efficiencies

pytestmark = pytest.mark.distributed


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


TRACE = str(Path(__file__).parents[2] / "traces/first-light.jsonl")


def test_a_trace_is_read_window_by_window() -> None:
    """All windows of a trace of 45 MB took 10 GB."""
    source = FromTrace(Path(TRACE))
    gc.collect()
    before = {id(one) for one in gc.get_objects() if isinstance(one, WindowView)}  # of other tests

    def made() -> int:
        return sum(isinstance(one, WindowView) and id(one) not in before for one in gc.get_objects())

    alive = [made() for _ in source.windows("job")]
    assert len(alive) == 8
    assert max(alive) <= 3
    assert [decision.decision.window for decision in source.decisions("job", after=5)] == [6, 7]
