"""Long traces are thinned: what stands out is kept."""

from itertools import pairwise

from gravac_controller.views.thinning import MOST_MARKED, Thinned
from tests.controller.views.test_history import window


def test_what_stands_out_is_kept_however_long_the_trace() -> None:
    thinned = Thinned(100)
    for at in range(5000):
        thinned.add(
            window(
                at,
                gain=0.01 if at == 1234 else 0.5,
                backlog=9.0 if at == 2345 else 0.1,
                seconds=7.0 if at == 3456 else 1.0,
                marked=at == 4321 or 400 <= at < 410,
            )
        )
    kept = [one.number("window") for one in thinned]
    assert len(kept) == len(thinned) <= 101
    assert kept == sorted(set(kept)), "in order, each once"
    assert {0, 1234, 2345, 3456, 4321, 4999} <= set(kept)
    assert 1 <= sum(400 <= at < 410 for at in kept if at is not None) <= 2 * (MOST_MARKED + 4)
    assert thinned.windows == 5000
    assert all(b - a <= thinned.run for a, b in pairwise(kept) if a is not None and b is not None)


def test_a_short_trace_is_kept_whole() -> None:
    thinned = Thinned(100)
    for at in range(100):
        thinned.add(window(at))
    assert len(thinned) == 100
    assert thinned.run == 1
