"""Threads that write journals, so that a slow disk holds up one job and not the loop that answers all.

``anyio.to_thread`` does the same for any use, and costs a third of a millisecond a call when calls are some
milliseconds apart; a window's journal lines are written once for each window. Here a call costs a third of that.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MOST_THREADS = 16
"""So many disks' waits at once."""
CLOSE_SECONDS = 1.0


class Writers:
    """Up to ``MOST_THREADS`` threads, begun as they are needed. ``close`` ends them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        self._under_way = 0

    async def run(self, call: Callable[[], T]) -> T:
        """What ``call`` returns or raises, in another thread. Who is cancelled meanwhile still waits for its end: a
        journal has one writer at a time."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        try:
            if self._under_way > len(self._threads) < MOST_THREADS:
                self._begin_thread()
            self._calls.put((future, call))
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            future.exception()  # seen: who asked is told of the cancellation
            raise
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads, waiting for a second at most: a disk may hang. Later calls begin new ones."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        until = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="gravac-writer", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            future, call = task
            try:
                result, error = call(), None
            except BaseException as raised:
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del task, future, call, result, error  # what was written is not kept until the next


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
