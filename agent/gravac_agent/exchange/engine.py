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

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import AllReduce
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac_agent.errors import peer_error
from gravac_agent.exchange.encode import Encoder
from gravac_agent.exchange.kinds import norm_sq
from gravac_agent.exchange.plan import Directive, Plan
from gravac_agent.exchange.step import Outcome, Sending, Step, Task, Transfer
from gravac_agent.exchange.survey import Survey
from gravac_agent.exchange.tick import TickCodec
from gravac_agent.network.link import Pacer
from gravac_agent.network.metered import Metered

log = logging.getLogger("gravac.agent")


class Engine:
    """Owns the thread. ``begin`` a step, ``submit`` its buckets in order, ``outcome`` ends it."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        dense: AllReduce,
        metered: Metered,
        pacer: Pacer,
        tick_group: dist.ProcessGroup,
        codec: TickCodec,
        announce: Callable[[], tuple[Directive, tuple[int, int, int]]],
        surveyed: Callable[[int], bool],
        seed: int,
    ) -> None:
        self._surveyed = surveyed
        self.encoder = encoder
        self._dense, self._metered, self._pacer = dense, metered, pacer
        self._tick_group, self.codec, self._announce = tick_group, codec, announce
        self._seed, self._rank = seed, codec.rank
        self._inbox: queue.SimpleQueue[Task | Sending | Callable[[], None] | None] = queue.SimpleQueue()
        self._flights: deque[Sending] = deque()
        self._waiting: queue.SimpleQueue[Sending | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome | Exception] = queue.SimpleQueue()
        self._step: Step | None = None
        self._threads = (
            threading.Thread(target=self._run, name="gravac-exchange", daemon=True),
            threading.Thread(target=self._wait, name="gravac-wait", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def begin(self, plan: Plan, number: int) -> None:
        """Fix the plan of the next step. Call after the previous outcome was taken."""
        self._step = Step(plan, number, survey=Survey(self._surveyed(number)))

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        """Queue one bucket; the future holds its mean over ranks, written into ``buffer``."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if last and self._step is not None:
            self._step.last_submit_at = time.monotonic()
        self._inbox.put(Task(bucket, buffer, last, future))
        return future

    def outcome(self) -> Outcome:
        """Wait for the end of the step (its tick). Raises what a collective raised: PeerError when a rank is gone."""
        result = self._outcomes.get()
        if isinstance(result, Exception):
            raise result
        return result

    def call(self, job: Callable[[], None]) -> None:
        """Run ``job`` on the exchange thread, after everything queued so far (for the agent's other collectives)."""
        self._inbox.put(job)

    def run(self, job: Callable[[], object]) -> None:
        """``call`` it and wait. Raises what it raises."""
        done, failed = threading.Event(), list[Exception]()

        def ask() -> None:
            try:
                job()
            except Exception as error:
                failed.append(peer_error(error))
            finally:
                done.set()

        self.call(ask)
        done.wait()
        if failed:
            raise failed[0]

    def close(self) -> None:
        """End the threads once their queues are done."""
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            waiting_since = time.monotonic()
            item = self._take()
            cpu = time.thread_time()
            if self._flights and self._step is not None:
                self._step.activity.append(("communicate", waiting_since, time.monotonic()))
            if isinstance(item, Task):
                self._start(item)
            elif isinstance(item, Sending):
                item.over_at = self._pacer.deadline(time.monotonic(), item.exchange.sent_bytes)
            elif callable(item):
                item()
            elif item is None:
                self._waiting.put(None)
                return
            self._land(cpu)

    def _wait(self) -> None:
        while (flight := self._waiting.get()) is not None:
            try:
                flight.exchange.work.wait()
            except Exception as error:
                flight.error = error
            self._inbox.put(flight)

    def _take(self) -> Task | Sending | Callable[[], None] | str | None:
        """The next thing to do; ``"land"`` when the oldest paced transfer is over first."""
        over_at = self._flights[0].over_at if self._flights else None
        if over_at is None:
            return self._inbox.get()
        try:
            return self._inbox.get(timeout=max(0.0, over_at - time.monotonic()))
        except queue.Empty:
            return "land"

    def _start(self, task: Task) -> None:
        """Encode a bucket and issue its collective; after the last bucket, issue the tick."""
        step = self._step
        assert step is not None
        begun = time.monotonic()
        try:
            key = Key(self._seed, step.number, task.bucket.number, self._rank)
            raw = self.encoder.passes_through(step.plan, task.bucket)
            exchange: Transfer | None = self.encoder.start(
                step.plan, task.bucket, task.buffer, key, step.sums, step.survey
            )
            dense = exchange is None
            if exchange is None:
                exchange = self._dense.reduce_in_place(task.buffer)
            step.payload_bytes += exchange.payload_bytes
            # Of a sparse gradient plain DDP sends what is there, and so do we.
            step.dense_bytes += exchange.payload_bytes if dense else task.buffer.nbytes
            flight = Sending(task, exchange, raw, dense)
            self._flights.append(flight)
            self._waiting.put(flight)
            if task.last:
                figures = self.encoder.aggregator.figures()
                step.tick = self.codec.pack(step.sums, *self._announce(), figures)
                step.tick_work = dist.all_reduce(step.tick, group=self._tick_group, async_op=True)
        except (
            Exception
        ) as error:  # a collective could not be issued: the job is broken, say so where DDP waits
            self._fail(task, error)
        for wait_begun, wait_ended in self._metered.pop_waits():
            step.activity += [("compress", begun, wait_begun), ("communicate", wait_begun, wait_ended)]
            begun = wait_ended
        step.activity.append(("compress", begun, time.monotonic()))

    def _land(self, cpu: float) -> None:
        """Decode every transfer that is over, oldest first. ``cpu``: thread time up to which all is counted."""
        step = self._step
        while self._flights:
            flight = self._flights[0]
            if flight.over_at is None or flight.over_at > time.monotonic():
                break
            self._flights.popleft()
            if flight.error is not None:
                self._fail(flight.task, flight.error)
                continue
            begun = time.monotonic()
            try:
                self._land_one(flight)
            except Exception as error:
                self._fail(flight.task, error)
                continue
            assert step is not None
            step.activity.append(("decompress", begun, time.monotonic()))
            flight.task.future.set_result(flight.task.buffer)
            if flight.task.last:
                step.cpu_seconds += time.thread_time() - cpu
                self._end(step)
                return
        if step is not None:
            step.cpu_seconds += time.thread_time() - cpu

    def _land_one(self, flight: Sending) -> None:
        step, task = self._step, flight.task
        finite = self.encoder.land(task.bucket, flight.exchange.mean_into, task.buffer, flight.dense)
        if step is not None:
            step.finite &= finite
            if step.mean_sq is not None:
                step.mean_sq = step.mean_sq + norm_sq(task.buffer) if flight.raw else None

    def _end(self, step: Step) -> None:
        try:
            assert step.tick is not None
            assert step.tick_work is not None
            begun = time.monotonic()
            step.tick_work.wait()
            step.activity.append(("communicate", begun, time.monotonic()))
            tick = self.codec.unpack(step.tick)
        except Exception as error:
            self._outcomes.put(peer_error(error))
            return
        self._outcomes.put(
            Outcome(
                tick,
                step.last_submit_at,
                step.activity,
                step.dense_bytes,
                step.payload_bytes,
                step.mean_sq,
                step.finite,
                step.survey.curve,
                step.cpu_seconds,
            )
        )

    def _fail(self, task: Task, error: Exception) -> None:
        log.error("collective of bucket %d failed: %s", task.bucket.number, error)
        self._outcomes.put(
            peer_error(error)
        )  # raised by ``outcome``, before any optimizer uses the gradients
        # DDP cannot read a Python exception out of a future ("Unable to cast ... to Tensor"), so it gets zeros.
        task.future.set_result(task.buffer.zero_())
