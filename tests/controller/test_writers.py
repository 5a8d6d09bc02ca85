"""Threads that write journals: what comes back, how many wait at once, and that nothing is left half-done."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from gravac_controller.jobs.writers import MOST_THREADS, Writers


@pytest.fixture
def writers() -> Iterator[Writers]:
    made = Writers()
    yield made
    made.close()


@pytest.fixture
def others() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_results_and_errors_come_back_to_who_asked(writers: Writers, others: set[threading.Thread]) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    async def ask() -> None:
        here = threading.get_ident()
        assert await writers.run(threading.get_ident) != here
        with pytest.raises(OSError, match="No space left"):
            await writers.run(refuse)
        assert await asyncio.gather(*(writers.run(lambda i=i: i * i) for i in range(100))) == [  # type: ignore[misc]
            i * i for i in range(100)
        ]

    asyncio.run(ask())
    asyncio.run(ask())  # threads serve any loop
    assert len(set(threading.enumerate()) - others) <= MOST_THREADS


def test_a_slow_disk_does_not_hold_up_the_loop_nor_other_writes(
    writers: Writers, others: set[threading.Thread]
) -> None:
    slow = threading.Event()

    async def ask() -> None:
        waiting = [asyncio.ensure_future(writers.run(slow.wait)) for _ in range(MOST_THREADS - 1)]
        assert await asyncio.wait_for(writers.run(lambda: "through"), 10) == "through"
        assert not any(task.done() for task in waiting)
        beyond = [asyncio.ensure_future(writers.run(slow.wait)) for _ in range(MOST_THREADS)]
        await asyncio.sleep(0)
        assert len(set(threading.enumerate()) - others) == MOST_THREADS
        slow.set()
        assert all(await asyncio.gather(*waiting, *beyond))

    asyncio.run(ask())


def test_who_is_cancelled_waits_for_the_end_of_what_was_begun(writers: Writers) -> None:
    begun, written = threading.Event(), []

    def write() -> None:
        begun.set()
        time.sleep(0.2)
        written.append("line")

    async def ask() -> None:
        task = asyncio.ensure_future(writers.run(write))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # by who has no patience
        with pytest.raises(asyncio.CancelledError):
            await task
        assert written == ["line"]

    asyncio.run(ask())


def test_closing_ends_the_threads_and_later_calls_begin_new_ones(
    writers: Writers, others: set[threading.Thread]
) -> None:
    assert asyncio.run(writers.run(lambda: 1)) == 1
    writers.close()
    assert set(threading.enumerate()) == others
    assert asyncio.run(writers.run(lambda: 2)) == 2


def test_closing_does_not_wait_for_a_disk_that_hangs(writers: Writers) -> None:
    hung = threading.Event()

    async def ask() -> float:
        task = asyncio.ensure_future(writers.run(lambda: hung.wait(30)))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        writers.close()
        took = time.monotonic() - began
        hung.set()
        assert await task
        return took

    assert asyncio.run(ask()) < 5


def test_nothing_is_kept_of_a_call_that_is_done(writers: Writers) -> None:
    class Heavy:
        alive = 0

        def __init__(self) -> None:
            Heavy.alive += 1

        def __del__(self) -> None:
            Heavy.alive -= 1

    async def ask() -> None:
        for _ in range(3):
            await writers.run(Heavy)

    asyncio.run(ask())
    until = time.monotonic() + 10
    while Heavy.alive and time.monotonic() < until:
        time.sleep(0.01)
    assert Heavy.alive == 0
