"""The exchange thread: every gradient collective of this rank is issued here, in one agreed order.

DDP's hook only queues its bucket and returns a future. So nothing is raised into autograd, and nothing waits inside a
future's callback, which deadlocks gloo with two buckets. Encoding a bucket overlaps with backward and with sending
another bucket. A second thread only waits for the transfers in flight. No Python runs on gloo's own threads: a process
that ends at such a moment aborts.

Some error memories undo a step with its gradient. The mean would overwrite that gradient, so the transfers of such a
memory stay undecoded until the tick says whether the step counts.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import Communicator, Transfer
from gravac.compressors import Key
from gravac.kernels.sifting import mapped
from gravac.memories import Bucket, Memory
from gravac_agent.errors import peer_error
from gravac_agent.exchange.agreement import LEAVE_SECONDS
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import Survey, norm_sq
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.raw_mean import NOT_MEASURED
from gravac_agent.exchange.sample import GradientSample
from gravac_agent.exchange.step import (
    SEED,
    Activity,
    BucketPhase,
    InFlight,
    Message,
    Signal,
    StepRecord,
    StepResult,
    SubmittedBucket,
)
from gravac_agent.exchange.tick import NOT_READ, Announcement, Tick, TickCodec
from gravac_agent.network.doubling import Doubling, Rounds
from gravac_agent.network.link import Pacer
from gravac_agent.network.metered import Metered

log = logging.getLogger("gravac.agent")


class HostExecutor:
    """An ``Executor`` that owns the exchange thread and the wait thread. ``Executor`` documents its methods.

    Args:
        channels: They encode and decode the buckets.
        dense: Issues the trainer's own collective, for buckets that are not compressed.
        metered: The data group, which records how long an aggregation waited inside its rounds.
        pacer: The emulated link.
        ticks: The ranks of the ticks.
        tick_codec: Packs and unpacks ticks.
        announcement: What this rank announces in each tick.
        sample: Copies a sample of each step's gradients.
        host: Divides buckets among the ranks of this host; None: each rank exchanges all of a bucket.
    """

    defers_result, device = False, None  # a step's result is known before the optimizer steps

    def __init__(
        self,
        *,
        channels: Channels,
        dense: Callable[[SubmittedBucket], Transfer],
        metered: Metered,
        pacer: Pacer,
        ticks: Communicator,
        tick_codec: TickCodec,
        announcement: Announcement,
        sample: GradientSample,
        host: HostLevel | None = None,
    ) -> None:
        self.channels, self.tick_codec = channels, tick_codec
        self._dense, self._metered, self._pacer = dense, metered, pacer
        self._ticks, self._announcement, self._sample = ticks, announcement, sample
        self._rank, self._host = metered.rank, host
        # Not a SimpleQueue: in CPython 3.11 and 3.12, its get() may wait forever if a short timeout is over before it
        # begins to wait.
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._buckets: list[InFlight] = []  # on their way, in the order in which they were sent
        self._to_wait_for: queue.SimpleQueue[InFlight | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[StepResult | Exception] = queue.SimpleQueue()
        self._step: StepRecord | None = None
        self._broken: Exception | None = None
        """What a collective raised. This rank issues none after it: they would meet other ones than they should."""
        self._threads = [
            threading.Thread(target=self._run, name="gravac-exchange", daemon=True),
            threading.Thread(target=self._wait, name="gravac-wait", daemon=True),
        ]
        self._rounds: queue.SimpleQueue[Rounds | None] = queue.SimpleQueue()
        if isinstance(ticks, Doubling) and ticks.in_rounds:
            self._threads.append(threading.Thread(target=self._run_ticks, name="gravac-tick", daemon=True))
        for thread in self._threads:
            thread.start()

    def begin_step(self, plan: StepPlan, number: int, surveyed: bool) -> None:
        self._sample.begin_step()
        self._step = StepRecord(plan=plan, number=number, survey=Survey(surveyed))
        if self._host is not None:
            self._step.mean_sq = None  # a rank's gradient is the mean of its host's already

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        if last and self._step is not None:
            self._step.last_submit_at = time.monotonic()
        self._inbox.put(SubmittedBucket(bucket, buffer, last, future, buffer))
        return future

    def submit_now(self, bucket: Bucket, gradient: Tensor, out: Tensor, factor: float) -> None:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._inbox.put(SubmittedBucket(bucket, gradient, False, future, out, factor))
        future.wait()

    def end_backward(self, gradients: Iterable[Tensor]) -> None:
        if self._step is not None:
            self._step.last_submit_at = time.monotonic()
        self._inbox.put(Signal.END_OF_BACKWARD)

    def wait_step(self) -> StepResult:
        result = self._results.get()
        try:
            if isinstance(result, Exception):
                raise result
            return result
        finally:
            del result  # else this frame and the error refer to each other, see ``_report``

    def enqueue(self, job: Callable[[], None]) -> None:
        self._inbox.put(job)

    def run(self, job: Callable[[], object]) -> None:
        done, failed = threading.Event(), list[Exception]()

        def guarded() -> None:
            try:
                job()
            except Exception as error:
                failed.append(peer_error(error))
            finally:
                done.set()

        self.enqueue(guarded)
        done.wait()
        if failed:
            raise failed[0]

    def run_between_steps(self, job: Callable[[], None]) -> None:
        job()  # no bucket is encoded between steps

    def check(self) -> None:
        return  # ``wait_step`` raises it, as it waits for the step

    def abandon(self) -> None:
        self.run(self._abandon)  # after all buckets that are queued

    def failed(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer.zero_())
        return future

    def detached(self, memory: Memory) -> Memory:
        return memory

    def close(self) -> bool:
        self._inbox.put(Signal.STOP)
        until = time.monotonic() + LEAVE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # -- the wait thread --------------------------------------------------------------------------------------

    def _wait(self) -> None:
        # Nothing but waiting: gradients and the memory belong to the exchange thread.
        while (bucket := self._to_wait_for.get()) is not None:
            try:
                for work in bucket.works:
                    work.wait()
            except Exception as error:
                bucket.error = error
            self._inbox.put(bucket)
            del bucket  # which would keep the payload until the next one

    def _run_ticks(self) -> None:
        """Let a tick of several rounds go on while the other threads work."""
        while (rounds := self._rounds.get()) is not None:
            with contextlib.suppress(Exception):  # ``_read_tick`` raises it
                rounds.wait()

    # -- the exchange thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            waiting_since = time.monotonic()
            message = self._next_message()
            cpu = time.thread_time()
            # This thread had nothing to do while something was on its way: that is the time that the network took.
            phases = [bucket.phase for bucket in self._buckets]
            if self._step is not None and (BucketPhase.SENT in phases or BucketPhase.SHARED in phases):
                waited: Activity = "communicate" if BucketPhase.SENT in phases else "inside"
                self._step.activity.append((waited, waiting_since, time.monotonic()))
            match message:
                case SubmittedBucket():
                    self._send(message)
                case InFlight(phase=BucketPhase.SHARED):
                    self._join(message)
                case InFlight():
                    now, paced = time.monotonic(), self._pacer.link is not None
                    sent_bytes = message.transfer.sent_bytes
                    message.ends_at = self._pacer.deadline(now, sent_bytes) if paced else now
                case Signal.END_OF_BACKWARD:
                    self._end_backward()
                case Signal.DUE:
                    pass  # ``_decode_ended`` finds what is due
                case Signal.STOP:
                    self._abandon()
                    self._to_wait_for.put(None)
                    self._rounds.put(None)
                    if self._step is not None and self._step.tick_work is not None:
                        with contextlib.suppress(Exception):
                            self._step.tick_work.wait()
                    return
                case _:
                    message()
            del message  # which would keep the payload until the next one
            self._decode_ended(cpu)

    def _are(self, phase: BucketPhase) -> list[InFlight]:
        """Return the buckets in a phase, in the order in which they were sent."""
        return [bucket for bucket in self._buckets if bucket.phase is phase]

    def _next_message(self) -> Message:
        """Return the next message, or ``DUE`` if the emulated link is done with the oldest transfer before it comes."""
        ends_at = None
        for bucket in self._buckets:
            if bucket.phase is BucketPhase.SENT:
                ends_at = bucket.ends_at
                break
        if ends_at is None:
            return self._inbox.get()
        try:
            return self._inbox.get(timeout=max(0.0, ends_at - time.monotonic()))
        except queue.Empty:
            return Signal.DUE

    def _send(self, submitted: SubmittedBucket) -> None:
        """Encode a bucket and issue its collective. After the last bucket, issue the tick."""
        step = self._step
        assert step is not None
        if self._broken is not None:
            self._fail(submitted, self._broken)
            return
        step.overflows |= submitted.buffer.dtype == torch.float16
        begin = time.monotonic()
        whole = submitted
        try:
            if self._host is not None:
                submitted = self._host.divide(whole)
            bucket, buffer = submitted.bucket, submitted.buffer
            channel = self.channels.begin(bucket, step.plan)
            if self._sample.size:  # before a dense step adds the residual to the buffer
                if channel.sampled is None:
                    channel.sampled = self._sample.of(whole.bucket)
                self._sample.copy(whole.buffer, channel.sampled, self._sample.raw)
            key = Key(SEED, step.number, bucket.number, self._rank)
            sent, raw, unresolved = channel.encode(step.plan, buffer, key, step.sums, step.survey)
            in_place, transfer = sent is None, sent or self._dense(submitted)
            proven = in_place or channel.proven[step.plan.codec]
            in_flight = InFlight(
                submitted, channel, transfer, in_place, raw, unresolved, proven, (transfer.work,)
            )
            # Not always the buffer's bytes: of a sparse gradient, plain DDP sends only the elements that are there.
            step.dense_bytes += transfer.payload_bytes if in_place else buffer.nbytes
            step.payload_bytes += transfer.payload_bytes
            self._buckets.append(in_flight)
            self._to_wait_for.put(in_flight)
            if submitted.last:
                # Right behind the last bucket, and before any transfer is waited for, so it costs no round of its own.
                self._issue_tick(step)
        except Exception as error:  # a collective could not be issued: report it where DDP waits
            self._broken = error
            self._fail(submitted, error)
        # A collective of several rounds waits inside ``encode``, which is no work of this thread.
        inside = () if self._host is None else self._host.pop_waits()
        for waited, waits in (("inside", inside), ("communicate", self._metered.pop_waits())):
            for wait_begin, wait_end in waits:
                step.activity += [
                    ("compress", begin, wait_begin),
                    (cast("Activity", waited), wait_begin, wait_end),
                ]
                begin = wait_end
        step.activity.append(("compress", begin, time.monotonic()))

    def _issue_tick(self, step: StepRecord) -> None:
        channels, announcement = self.channels, self._announcement
        aggregator = channels.aggregators[step.plan.codec]
        step.sums.slow = float(announcement.slow)
        step.vector = self.tick_codec.pack(
            step.sums,
            announcement.directive,
            announcement.fingerprint(),
            aggregator.local_statistics() if aggregator.learns else (),
            channels.raw_mean.pop() if channels.raw_mean.wanted else NOT_MEASURED,
            self._sample.raw,
        )
        work = self._ticks.sum(step.vector)
        step.tick_work = cast("dist.Work", work)
        if isinstance(work, Rounds):
            self._rounds.put(work)

    def _end_backward(self) -> None:
        """End a sharded step. Each call has waited for its mean, so the tick can carry this rank's part of the norm."""
        step = self._step
        assert step is not None
        try:
            if step.mean_sq is not None:
                step.sums.shards_sq = step.mean_sq
            self._issue_tick(step)
        except Exception as error:
            self._report(step, error)
            return
        self._end_step(step, sharded=True)

    def _decode_ended(self, cpu: float) -> None:
        """Decode the transfers that ended, oldest first.

        Args:
            cpu: This thread's CPU time when its work began.
        """
        step, arrived = self._step, False
        for bucket in self._buckets:
            if bucket.phase is BucketPhase.SENT:
                if bucket.ends_at is None or bucket.ends_at > time.monotonic():
                    break
                bucket.phase = BucketPhase.ARRIVED
                if step is not None:
                    step.complete |= bucket.submitted.last
            arrived |= bucket.phase is BucketPhase.ARRIVED
        if step is None:
            return
        if arrived:
            self._finish_known(step, step.complete)
        step.cpu_seconds += time.thread_time() - cpu
        if step.complete and step.error is None and not self._buckets:
            step.complete = False
            self._end_step(step)

    def _finish_known(self, step: StepRecord, complete: bool) -> None:
        """Finish the ended buckets whose fate is known.

        This is a method of its own so that its lists end with it: they would keep payloads while the step ends.
        """
        self._finish(
            [bucket for bucket in self._are(BucketPhase.ARRIVED) if bucket.proven and not bucket.unresolved]
        )
        if not self._are(BucketPhase.ARRIVED):
            return
        try:
            # All ranks must prove the same buckets together: all of the step at its end. FSDP2 waits for each bucket
            # by itself, so there it is one at a time.
            unproven = [bucket for bucket in self._are(BucketPhase.ARRIVED) if not bucket.proven]
            if unproven and (complete or unproven[0].submitted.sharded):
                self._prove(step, unproven)
                self._finish([bucket for bucket in self._are(BucketPhase.ARRIVED) if not bucket.unresolved])
            waiting = [bucket for bucket in self._are(BucketPhase.ARRIVED) if bucket.proven]
            if waiting and self._read_outcome(step, waiting, complete):
                self._finish(waiting)
        except Exception as error:  # the tick's
            self._report(step, error)
            self._finish(self._are(BucketPhase.ARRIVED))

    def _read_outcome(self, step: StepRecord, ended: Collection[InFlight], complete: bool) -> bool:
        """Set ``step.counts`` if it is known, while the gradients that undo the step are still there.

        A step counts if no rank had a non-finite gradient or sum and no collective failed.

        Args:
            step: The running step.
            ended: The buckets that wait for the answer.
            complete: Whether all transfers of the step have ended. Then this waits for the tick.

        Returns:
            Whether the answer is known, so that the buckets can be decoded.

        Raises:
            Exception: What the collective of the tick raised.
        """
        if step.counts is not None or step.error is not None:
            return True
        if any(bucket.error is not None for bucket in ended):
            step.counts = False
            return True
        # Without waiting if there is something else to do. Means in float16 may overflow, which shows only when all of
        # them have arrived.
        if step.tick_work is None or not (complete or (step.tick_work.is_completed() and not step.overflows)):
            return False
        tick = self._read_tick(step)
        finite = step.finite
        if step.overflows:
            finite = finite and all(
                self.channels.means.is_finite(bucket.transfer, bucket.submitted.buffer)
                for bucket in ended
                if bucket.unresolved
            )
        step.counts = finite and tick.sums.nonfinite == 0
        return True

    def _read_tick(self, step: StepRecord) -> Tick:
        """Return the step's tick, and wait for it the first time. Raise what the collective raised."""
        if step.tick is NOT_READ:
            assert step.vector is not None
            assert step.tick_work is not None
            begin = time.monotonic()
            step.tick_work.wait()
            step.activity.append(("communicate", begin, time.monotonic()))
            step.tick = self.tick_codec.unpack(step.vector)
        return step.tick

    def _prove(self, step: StepRecord, buckets: list[InFlight]) -> None:
        """Decode buckets on trial, and send again, densely, those that a rank cannot decode.

        A rank that alone gets no mean would step with another one than the rest. So all ranks agree on it before any
        buffer is written, the first time that a bucket is sent with a codec.
        """
        failed = list[int]()
        for bucket in buckets:
            bucket.proven = True
            if bucket.error is not None:
                return  # a rank is gone, so nothing can be agreed on, and the step fails
            try:
                bucket.transfer.mean_into(mapped(bucket.submitted.out.numel(), bucket.submitted.out.dtype))
            except Exception:
                log.exception(
                    "bucket %d cannot be decoded: it is sent densely", bucket.submitted.bucket.number
                )
                failed.append(bucket.submitted.bucket.number)
        for bucket in buckets:
            bucket.channel.proven[step.plan.codec] = True
        dense = self.channels.failing.agree_on_decoded(failed, self._ticks)
        for bucket in buckets:
            submitted, channel = bucket.submitted, bucket.channel
            if channel not in dense:
                continue
            # Part of all fingerprints from now on: a rank that decided otherwise is found before the next step.
            self._announcement.add(f"dense {submitted.bucket.names}")
            self.channels.note(f"A rank cannot decode {channel.label}: it is sent densely from now on.")
            channel.resolve(submitted.buffer, False)
            channel.send_whole(submitted.buffer, self._metered.size)
            bucket.transfer, bucket.in_place, bucket.unresolved = self._dense(submitted), True, False
            step.payload_bytes += bucket.transfer.payload_bytes
            bucket.transfer.work.wait()

    def _finish(self, buckets: list[InFlight]) -> None:
        """Settle these buckets in the memory, write their means into the buffers, and complete the futures."""
        step = self._step
        assert step is not None
        while buckets:  # not ``for``: a bucket's payload is freed before the next one is decoded
            bucket = buckets.pop(0)
            submitted, begin = bucket.submitted, time.monotonic()
            try:
                # Before the mean overwrites the gradient, which may have to undo the step.
                if bucket.unresolved:
                    bucket.unresolved = False
                    bucket.channel.resolve(submitted.buffer, bool(step.counts))
                if bucket.error is not None:
                    raise bucket.error
                self._decode(bucket)
            except Exception as error:
                self._buckets.remove(bucket)
                self._fail(submitted, error)
                continue
            step.activity.append(("decompress", begin, time.monotonic()))
            bucket.phase = BucketPhase.DECODED
            if submitted.whole is None:
                self._buckets.remove(bucket)
                submitted.future.set_result(submitted.out)
        if self._host is not None:
            self._share(step)

    def _share(self, step: StepRecord) -> None:
        """Send means to the other ranks of the host, in the order in which buckets were sent, as all of them do."""
        for bucket in [one for one in self._buckets if one.submitted.whole is not None]:
            assert self._host is not None
            if bucket.phase is BucketPhase.SHARED:
                continue
            if step.error is not None:  # the others may wait for other means than this
                self._buckets.remove(bucket)
                self._fail(bucket.submitted, step.error)
                continue
            if bucket.phase is not BucketPhase.DECODED:
                return
            try:
                bucket.works = self._host.gather(bucket.submitted, bucket.channel.senders)
            except Exception as error:
                self._buckets.remove(bucket)
                self._fail(bucket.submitted, error)
                continue
            step.inside_bytes += self._host.nbytes(bucket.submitted, bucket.channel.senders)
            bucket.phase, bucket.error = BucketPhase.SHARED, None
            self._to_wait_for.put(bucket)

    def _join(self, bucket: InFlight) -> None:
        """Put the mean of a bucket together from its pieces, and complete its future."""
        self._buckets.remove(bucket)
        step, begin = self._step, time.monotonic()
        piece, channel, whole = bucket.submitted, bucket.channel, bucket.submitted.whole
        assert step is not None
        assert self._host is not None
        assert whole is not None
        try:
            if bucket.error is not None:
                raise bucket.error
            channel.show(whole.bucket, self._host.join(piece, channel.senders))
            if whole.factor != 1.0:
                whole.buffer.mul_(whole.factor)
        except Exception as error:
            self._fail(piece, error)
            return
        if channel.sampled is not None:
            self._sample.copy(whole.buffer, channel.sampled, self._sample.exchanged)
        step.activity.append(("decompress", begin, time.monotonic()))
        whole.future.set_result(whole.buffer)

    def _undo(self) -> None:
        """Undo, in the memory, all buckets whose buffers still hold their gradients."""
        for bucket in self._buckets:
            if bucket.unresolved:
                bucket.unresolved = False
                bucket.channel.resolve(bucket.submitted.buffer, False)

    def _abandon(self) -> None:
        self._undo()
        for bucket in self._are(BucketPhase.ARRIVED):
            bucket.phase = BucketPhase.DECODED
            if bucket.submitted.whole is None:  # else the other ranks of the host wait for it, in order
                self._buckets.remove(bucket)
        if self._step is not None:
            self._share(self._step)

    def _decode(self, bucket: InFlight) -> None:
        step, submitted = self._step, bucket.submitted
        finite = bucket.channel.decode(bucket.transfer, submitted.out, bucket.in_place)
        sampled = bucket.channel.sampled
        if submitted.out is submitted.buffer:
            if sampled is not None and submitted.whole is None:
                self._sample.copy(submitted.buffer, sampled, self._sample.exchanged)
        elif submitted.factor != 1.0 and not bucket.in_place:
            submitted.out.mul_(submitted.factor)
        if step is not None:
            step.finite &= finite
            step.raw &= bucket.raw
            if step.mean_sq is not None:
                mean_sq = float(norm_sq(submitted.out)) if bucket.raw else None
                part = None if mean_sq is None else submitted.part_of_norm(mean_sq, self._metered.size)
                step.mean_sq = None if part is None else step.mean_sq + part

    def _end_step(self, step: StepRecord, sharded: bool = False) -> None:
        """Wait for the tick and pass the result to the training thread."""
        try:
            tick = self._read_tick(step) if step.tick is NOT_READ else step.tick
        except Exception as error:
            self._report(step, error)
            return
        if sharded and step.mean_sq is not None:
            step.mean_sq = tick.sums.shards_sq
        step.curve, step.exchanged = step.survey.curve, self._sample.exchanged
        self._results.put(step)

    def _report(self, step: StepRecord, error: Exception) -> None:
        """Let ``wait_step`` raise the step's first error, before any optimizer uses the gradients."""
        # Without the frames that it went through, which refer to it by way of the step: they would keep the process
        # groups open until a garbage collection, and ranks that share no collective with the lost one would wait.
        error.__traceback__ = None
        if step.error is None:
            step.error = error
            self._undo()
            # Buckets that were resolved as counting cannot be undone, so their residual is dropped.
            if step.counts:
                self.channels.memory.rollback()
            self._results.put(peer_error(error))

    def _fail(self, submitted: SubmittedBucket, error: Exception) -> None:
        log.error("the collective of bucket %d failed: %s", submitted.bucket.number, error)
        assert self._step is not None
        whole = submitted.whole or submitted
        # Else it was not divided yet.
        if self._host is None or whole is not submitted or whole.buffer.is_sparse:
            self.channels.channel(submitted.bucket).resolve(submitted.buffer, False)
        self._report(self._step, error)
        # DDP cannot read a Python exception out of a future ("Unable to cast ... to Tensor"): zeros.
        if not whole.future.done():
            whole.future.set_result(whole.out.zero_())
