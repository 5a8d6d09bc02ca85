"""Garbage cycles are freed, objects in use are searched once, and Python's own collector is restored at the end."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from gravac_controller.server import collector
from gravac_controller.server.collector import Collector


class Knot:
    """An object that only the cycle collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector with short intervals."""
    monkeypatch.setattr(collector, "YOUNG_SECONDS", 0.002)
    monkeypatch.setattr(collector, "COUNT_SECONDS", 0.002)
    found = Collector()
    yield found
    found.stop()
    gc.unfreeze()


def test_a_garbage_cycle_is_freed(quick: Collector) -> None:
    async def main() -> None:
        quick.start()
        gone = weakref.ref(Knot())
        await asyncio.sleep(0.1)
        assert gone() is None

    asyncio.run(main())


def test_objects_in_use_are_searched_once(quick: Collector) -> None:
    async def main() -> None:
        quick.start()
        history = [Knot() for _ in range(10_000)]
        await asyncio.sleep(0.1)
        assert sum(isinstance(one, Knot) for one in gc.get_objects()) == 0  # those that are searched
        assert len(history) == 10_000

    asyncio.run(main())


@pytest.mark.long
def test_a_cycle_that_was_in_use_is_freed_once_the_heap_has_doubled(quick: Collector) -> None:
    async def main() -> None:
        quick.start()
        knot = Knot()
        gone = weakref.ref(knot)
        await asyncio.sleep(0.05)
        del knot
        await asyncio.sleep(0.05)
        assert gone() is not None  # frozen
        more = [Knot() for _ in range(gc.get_freeze_count() + 1)]
        await asyncio.sleep(0.5)
        assert gone() is None
        assert more

    asyncio.run(main())


def test_pythons_collector_is_restored() -> None:
    async def main() -> None:
        one = Collector()
        one.start()
        assert not gc.isenabled()
        one.stop()
        assert gc.isenabled()
        gc.unfreeze()
        gc.disable()  # or Python might free it
        gone = weakref.ref(Knot())
        await asyncio.sleep(2 * collector.YOUNG_SECONDS)
        gc.enable()
        assert gone() is not None  # no timer is left

    asyncio.run(main())
