"""The exchange thread: every gradient collective of this rank is issued here, in one agreed order.

DDP's hook only queues its bucket and returns a future, so nothing is raised into autograd and nothing waits inside a
future's callback (which deadlocks gloo with two buckets). Encoding one bucket overlaps sending another and backward.
A second thread only waits for what is in flight; no Python ever runs on gloo's own threads, which would abort
the process if it ended at that moment.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import AllReduce, Collective, Exchange
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac_agent.encode import Encoder
from gravac_agent.link import Pacer
from gravac_agent.plan import Directive, Plan
from gravac_agent.tick import StepSums, Tick, TickCodec

log = logging.getLogger("gravac.agent")
Activity = Literal["compress", "communicate", "decompress"]


@dataclass(slots=True)
class _Task:
    bucket: Bucket
    buffer: Tensor
    last: bool
    future: torch.futures.Future[Tensor]


@dataclass(slots=True)
class _Flight:
    task: _Task
    exchange: Exchange
    over_at: float | None = None  # monotonic; None: still on the real network
    error: Exception | None = None


@dataclass(slots=True)
class Outcome:
    """What one step did on this rank, and the tick all ranks share."""

    tick: Tick
    last_submit_at: float
    """Monotonic seconds: when backward handed over its last bucket."""
    activity: list[tuple[Activity, float, float]]
    dense_bytes: int
    payload_bytes: int


@dataclass(slots=True)
class _Step:
    plan: Plan
    number: int
    sums: StepSums = field(default_factory=StepSums)
    last_submit_at: float = 0.0
    activity: list[tuple[Activity, float, float]] = field(default_factory=list)
    dense_bytes: int = 0
    payload_bytes: int = 0
    tick: Tensor | None = None
    tick_work: dist.Work | None = None


class Engine:
    """Owns the thread. ``begin`` a step, ``submit`` its buckets in order, ``outcome`` ends it."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        collective: Collective,
        dense: AllReduce,
        pacer: Pacer,
        tick_group: dist.ProcessGroup,
        codec: TickCodec,
        announce: Callable[[], tuple[Directive, tuple[int, int, int]]],
        seed: int,
    ) -> None:
        self.encoder = encoder
        self._collective, self._dense, self._pacer = collective, dense, pacer
        self._tick_group, self._codec, self._announce = tick_group, codec, announce
        self._seed, self._rank = seed, codec.rank
        self._inbox: queue.SimpleQueue[_Task | _Flight | Callable[[], None] | None] = queue.SimpleQueue()
        self._flights: deque[_Flight] = deque()
        self._waiting: queue.SimpleQueue[_Flight | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome | Exception] = queue.SimpleQueue()
        self._step: _Step | None = None
        self._threads = (
            threading.Thread(target=self._run, name="gravac-exchange", daemon=True),
            threading.Thread(target=self._wait, name="gravac-wait", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def begin(self, plan: Plan, number: int) -> None:
        """Fix the plan of the next step. Call after the previous outcome was taken."""
        self._step = _Step(plan, number)

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        """Queue one bucket; the future holds its mean over ranks, written into ``buffer``."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if last and self._step is not None:
            self._step.last_submit_at = time.monotonic()
        self._inbox.put(_Task(bucket, buffer, last, future))
        return future

    def outcome(self) -> Outcome:
        """Wait for the end of the step (its tick). Raises what a collective raised, as plain DDP would."""
        result = self._outcomes.get()
        if isinstance(result, Exception):
            raise result
        return result

    def call(self, job: Callable[[], None]) -> None:
        """Run ``job`` on the exchange thread, after everything queued so far (for the agent's other collectives)."""
        self._inbox.put(job)

    def close(self) -> None:
        """End the threads once their queues are done."""
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            waiting_since = time.monotonic()
            item = self._take()
            if self._flights and self._step is not None:
                self._step.activity.append(("communicate", waiting_since, time.monotonic()))
            if isinstance(item, _Task):
                self._start(item)
            elif isinstance(item, _Flight):
                item.over_at = self._pacer.deadline(time.monotonic(), item.exchange.sent_bytes)
            elif callable(item):
                item()
            elif item is None:
                self._waiting.put(None)
                return
            self._land()

    def _wait(self) -> None:
        while (flight := self._waiting.get()) is not None:
            try:
                flight.exchange.work.wait()
            except Exception as error:
                flight.error = error
            self._inbox.put(flight)

    def _take(self) -> _Task | _Flight | Callable[[], None] | str | None:
        """The next thing to do; ``"land"`` when the oldest paced transfer is over first."""
        over_at = self._flights[0].over_at if self._flights else None
        if over_at is None:
            return self._inbox.get()
        try:
            return self._inbox.get(timeout=max(0.0, over_at - time.monotonic()))
        except queue.Empty:
            return "land"

    def _start(self, task: _Task) -> None:
        """Encode a bucket and issue its collective; after the last bucket, issue the tick."""
        step = self._step
        assert step is not None
        begun = time.monotonic()
        try:
            key = Key(self._seed, step.number, task.bucket.number, self._rank)
            payload = self.encoder.encode(step.plan, task.bucket, task.buffer, key, step.sums)
            if payload is None:
                exchange = self._dense.reduce_in_place(task.buffer)
                step.payload_bytes += task.buffer.nbytes
            else:
                step.payload_bytes += payload.nbytes
                exchange = self._collective.exchange(
                    self.encoder.compressor, payload, step.plan.cf, key, task.buffer.dtype
                )
            step.dense_bytes += task.buffer.nbytes
            flight = _Flight(task, exchange)
            self._flights.append(flight)
            self._waiting.put(flight)
            if task.last:
                step.tick = self._codec.pack(step.sums, *self._announce())
                step.tick_work = dist.all_reduce(step.tick, group=self._tick_group, async_op=True)
        except (
            Exception
        ) as error:  # a collective could not be issued: the job is broken, say so where DDP waits
            self._fail(task, error)
        step.activity.append(("compress", begun, time.monotonic()))

    def _land(self) -> None:
        """Decode every transfer that is over, oldest first."""
        while self._flights:
            flight = self._flights[0]
            if flight.over_at is None or flight.over_at > time.monotonic():
                return
            self._flights.popleft()
            if flight.error is not None:
                self._fail(flight.task, flight.error)
                continue
            begun = time.monotonic()
            try:
                flight.exchange.mean_into(flight.task.buffer)
            except Exception as error:
                self._fail(flight.task, error)
                continue
            step = self._step
            assert step is not None
            step.activity.append(("decompress", begun, time.monotonic()))
            flight.task.future.set_result(flight.task.buffer)
            if flight.task.last:
                self._end(step)

    def _end(self, step: _Step) -> None:
        try:
            assert step.tick is not None
            assert step.tick_work is not None
            begun = time.monotonic()
            step.tick_work.wait()
            step.activity.append(("communicate", begun, time.monotonic()))
            tick = self._codec.unpack(step.tick)
        except Exception as error:
            self._outcomes.put(error)
            return
        self._outcomes.put(
            Outcome(tick, step.last_submit_at, step.activity, step.dense_bytes, step.payload_bytes)
        )

    def _fail(self, task: _Task, error: Exception) -> None:
        log.error("collective of bucket %d failed: %s", task.bucket.number, error)
        task.future.set_exception(error)  # type: ignore[arg-type]
        self._outcomes.put(error)
