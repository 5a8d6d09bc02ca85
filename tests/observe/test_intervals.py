"""Unions of intervals, and what a thread waits for."""

from gravac_observe.traces.intervals import Union, less, waits


def test_unions() -> None:
    union = Union([5.0, 0.0, 1.0, 9.0], [6.0, 2.0, 3.0, 9.0])
    assert (list(union.starts), list(union.ends), union.length) == ([0.0, 5.0, 9.0], [3.0, 6.0, 9.0], 4.0)
    assert union.within(-5.0, 50.0) == 4.0
    assert union.within(2.0, 5.5) == 1.5
    assert union.within(3.0, 4.0) == union.within(4.0, 3.0) == Union().within(0.0, 9.0) == 0.0
    assert [union.holds(moment) for moment in (0.0, 3.0, 4.0, 9.0, 10.0)] == [True, True, False, True, False]
    rest = less(Union([0.0, 8.0], [6.0, 12.0]), Union([1.0, 3.0, 9.0], [2.0, 8.5, 20.0]))
    assert list(zip(rest.starts, rest.ends, strict=True)) == [(0.0, 1.0), (2.0, 3.0), (8.5, 9.0)]


def test_a_thread_waits_for_what_ends_in_its_pause() -> None:
    """And not for what still runs when it goes on."""
    busy = Union([0.0, 10.0, 30.0], [5.0, 20.0, 40.0])
    found = waits(busy, [7.0, 12.0, 25.0, 28.0])
    assert list(zip(found.starts, found.ends, strict=True)) == [(5.0, 7.0), (20.0, 28.0)]
    found = waits(busy, [7.0, 12.0, 31.0], late=2.0)
    assert list(zip(found.starts, found.ends, strict=True)) == [(5.0, 10.0), (20.0, 30.0)]
