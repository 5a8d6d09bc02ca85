"""The exchange on a device: no thread and no waiting, only work queued on a stream beside the trainer's.

The thread that calls the hook queues everything. Per bucket, or group of buckets: encode, and issue the collective.
After the last bucket: sum the tick over ranks, resolve the error memory by it, decode all means, and complete the
futures. The host reads the tick when the next step begins, by which time the device is long past it.

Python's own bookkeeping runs at once, inside of what is given to ``Device.run``; nothing in there reads a tensor.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

import torch
from torch import Tensor

from gravac.collectives import Communicator, InPlace, Transfer, Work
from gravac.compressors import Key
from gravac.kernels import Scalar, Tally
from gravac.kernels.device.rounded import RoundedLayout
from gravac.kernels.device.step_sums import square
from gravac.memories import Bucket, Memory, ResidualMemory
from gravac_agent.devices import Device, DeviceEvent
from gravac_agent.errors import peer_error
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import Survey, norm_sq
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.step import SEED, Activity, StepResult, SubmittedBucket
from gravac_agent.exchange.tick import Announcement, StepSums, TickCodec
from gravac_agent.network.link import Link
from gravac_agent.streams.groups import GroupOffer, is_full
from gravac_agent.streams.messages import Messages, SentGroup, SentMessage
from gravac_agent.streams.rounded import RoundedMessages, SentRounded, SentRoundedGroup
from gravac_agent.streams.tick import DeviceTick, factor_of

_PATIENCE_SECONDS = 10.0
log = logging.getLogger("gravac.agent")


class QueuedPhase(Enum):
    """How far a bucket has come on its way through the streams."""

    QUEUED = auto()  # encoding has not begun, as on a simulated device
    SENT = auto()  # the gradient may have to undo the step, so the mean waits for the tick
    FREE = auto()  # it is sent, and the memory can undo the step without the gradient
    DECODED = auto()  # the mean is in the buffer before the tick, and the transfer is gone


@dataclass(slots=True)
class QueuedBucket:
    """A bucket whose encoding was queued."""

    submitted: SubmittedBucket
    """Where ranks divide gradients, this rank's piece of the bucket, once that is made."""
    channel: BucketChannel = field(init=False)
    """Set when encoding begins."""
    transfer: Transfer | None = None
    """What is in flight; None if encoding failed, or has not begun yet on a simulated device."""
    message: SentMessage | SentRounded | None = None
    """Instead of a transfer, where the device makes whole messages."""
    raw: bool = False
    """The mean will be that of the raw gradients."""
    phase: QueuedPhase = QueuedPhase.QUEUED
    error: Exception | None = None
    works: list[Work] = field(default_factory=list)
    """What sends the mean of a piece to the other ranks of the host."""

    @property
    def sent(self) -> Transfer | SentMessage | SentRounded | None:
        """What is in flight."""
        return self.message or self.transfer

    @property
    def in_place(self) -> bool:
        """Whether the buffer itself is all-reduced."""
        return isinstance(self.transfer, InPlace)


@dataclass(slots=True)
class DeviceStep:
    """The running step on this rank."""

    plan: StepPlan
    number: int
    survey: Survey
    sums: StepSums = field(default_factory=StepSums)
    buckets: list[QueuedBucket] = field(default_factory=list)
    opened: list[tuple[QueuedBucket, GroupOffer]] = field(default_factory=list)
    """Buckets whose message waits for that of the next one."""
    halfway: SentGroup | SentRoundedGroup | None = None
    """What has a second collective to issue."""
    dense_bytes: int = 0
    payload_bytes: int = 0
    inside_bytes: int = 0
    begins_again: bool = False
    """Whether a backward before this one did not end, whose sums are still in the tick's rows."""
    raw: bool = True
    """Whether every bucket was sent raw."""
    mean_sq: Scalar | None = 0.0
    """‖mean of raw gradients‖², of FSDP2's this rank's part; None if another one was sent, or is a host's mean."""
    sharded: bool = False
    """Whether FSDP2 hands over the gradients. It waits for each mean, so that none is kept in ``buckets``."""
    activity: list[tuple[Activity, int, int]] = field(default_factory=list)
    """What the stream did, between which marks of the timer."""
    last_submit: int = 0
    """The mark of the trainer's stream when backward handed over its last bucket."""
    host_seconds: float = 0.0
    fitting: list[Tensor] = field(default_factory=list)
    """Whether means fit their format, bool of shape ``()``, where that is not sure."""
    tick: Tensor | None = None
    tick_work: Work | None = None
    counts: Tensor | None = None
    """Whether the step counts, bool of shape ``()`` on the device."""
    copies: list[Tensor] = field(default_factory=list)
    """What the host reads after the step: the tick with two numbers, and the histograms of a survey."""
    ended: DeviceEvent | None = None
    """Reached when all of the step is done."""
    error: Exception | None = None
    """The first one that a collective raised."""


class StreamExecutor:
    """An ``Executor`` on a device. ``Executor`` documents its methods. Only ``wait_step``, ``run``, ``abandon``,
    ``detached`` and ``close`` may wait.

    Args:
        device: The device.
        channels: They encode and decode the buckets.
        dense: Issues the trainer's own collective, for buckets that are not compressed.
        ticks: The ranks, for ticks of tensors on the device.
        link: An emulated link, which keeps a stream of its own busy; None if there is none.
        tick_codec: Packs and unpacks ticks.
        announcement: What this rank announces in each tick.
        compiled: Whether all ranks have compiled kernels for the device, which make whole messages of some plans.
        host: Divides buckets among the ranks of this host; None: each rank exchanges all of a bucket.
    """

    defers_result = True
    """Whether a step's result is known only when the next one begins."""

    def __init__(
        self,
        *,
        device: Device,
        channels: Channels,
        dense: Callable[[SubmittedBucket], Transfer],
        ticks: Communicator,
        link: Link | None,
        tick_codec: TickCodec,
        announcement: Announcement,
        compiled: bool,
        host: HostLevel | None = None,
    ) -> None:
        self.channels, self.tick_codec = channels, tick_codec
        self.device, self._host = device, host
        self._dense, self._link, self._announcement = dense, link, announcement
        self._rank = channels.aggregator.communicator.rank
        self._ticks = DeviceTick(device, ticks)
        self._messages = Messages(channels, compiled, device.wait_work)
        self._rounded = RoundedMessages(channels, compiled, device.wait_work)
        self._side = device.new_stream()
        self._line = device.new_stream() if link is not None else self._side
        self._timer = device.timer()
        self._step: DeviceStep | None = None
        self._broken: Exception | None = None
        """What a collective raised. This rank issues none after it: they would meet other ones than they should."""

    def begin_step(self, plan: StepPlan, number: int, surveyed: bool) -> None:
        before, self._step = self._step, self._fresh(plan, number, surveyed)
        self._step.begins_again = before is not None and bool(before.buckets) and before.ended is None

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        began = time.perf_counter()
        device = self.device
        future = device.future()
        step = self._running(bucket)
        queued = QueuedBucket(SubmittedBucket(bucket, buffer, last, future, buffer))
        step.buckets.append(queued)
        try:
            device.refuse_capture()  # first, because nothing else below may run during a capture
            current = device.current_stream()
            device.wait_stream(self._side, current)  # backward may not have computed the gradient yet
            device.record_stream(buffer, self._side)  # DDP may free the buffer while the side stream uses it
            device.run(self._side, partial(self._encode, step, queued))
            if self._link is not None:
                device.wait_stream(self._line, self._side)
            if not last:  # else the tick goes first
                self._queue_early(step)
            if self._link is not None:
                device.run(self._line, partial(self._hold_up, step, queued, self._link))
            if last:
                step.last_submit = self._timer.mark(current)
                self._queue_end(step)
        except Exception as error:
            self._fail(step, queued, error)
        step.host_seconds += time.perf_counter() - began
        return future

    def submit_now(self, bucket: Bucket, gradient: Tensor, out: Tensor, factor: float) -> None:
        began = time.perf_counter()
        device, side, step = self.device, self._side, self._step
        assert step is not None
        if not step.sharded:
            step.sharded = True
            self._timer.restart()
        submitted = SubmittedBucket(bucket, gradient, False, device.future(), out, factor)
        queued = QueuedBucket(submitted)
        try:
            device.refuse_capture()
            current = device.current_stream()
            device.wait_stream(side, current)
            device.run(side, partial(self._encode, step, queued))
            if self._link is not None:
                device.wait_stream(self._line, side)
                device.run(self._line, partial(self._hold_up, step, queued, self._link))
                device.wait_stream(side, self._line)
            device.run(side, partial(self._deliver, step, queued))
            # FSDP2 uses ``out`` on this stream next, and frees the gradient once the stream is here.
            device.wait_stream(current, side)
            # Under HSDP this stream is not the one that ``out`` was made on, and FSDP2 may drop it at once.
            device.record_stream(out, current)
        except Exception as error:
            self._fail(step, queued, error)
        step.host_seconds += time.perf_counter() - began

    def end_backward(self, gradients: Iterable[Tensor]) -> None:
        began = time.perf_counter()
        device, step = self.device, self._step
        assert step is not None
        try:
            current = device.current_stream()
            step.last_submit = self._timer.mark(current)
            self._queue_end(step)
            device.wait_stream(current, self._side)
            device.run(current, partial(self._mark_lost, step, list(gradients)))
        except Exception as error:
            step.error = step.error or error
        step.host_seconds += time.perf_counter() - began

    def check(self) -> None:
        if self._step is not None and self._step.error is not None:
            raise peer_error(self._step.error)

    def wait_step(self) -> StepResult:
        step = self._step
        assert step is not None
        self.check()
        assert step.ended is not None
        # The next step begins long after, so this hardly ever waits.
        self.device.wait_event(step.ended, "the exchange")
        self.check()
        vector, *histograms = step.copies
        tick = self.tick_codec.unpack(vector[:-2])
        counts, mean_sq = vector[-2:].tolist()
        for tallied, energies in zip(histograms[::2], histograms[1::2], strict=True):
            step.survey.read(Tally(tallied.clone(), energies.clone()))
        self._ticks.release(step.copies)
        seconds = self._timer.seconds
        return StepResult(
            tick,
            seconds(step.last_submit),
            [(activity, seconds(begin), seconds(end)) for activity, begin, end in step.activity],
            step.dense_bytes,
            step.payload_bytes,
            None if step.mean_sq is None else tick.sums.shards_sq if step.sharded else mean_sq,
            step.raw,
            bool(counts),
            step.survey.curve,
            step.host_seconds,
            inside_bytes=step.inside_bytes,
        )

    def hangs(self) -> bool:
        """Return whether backward has ended and the device has not done the step. Any thread may call it."""
        step = self._step
        return step is not None and step.ended is not None and not step.ended.query()

    def enqueue(self, job: Callable[[], None]) -> None:
        self.run_between_steps(job)  # at once: what it queues on the device follows the buckets

    def run_between_steps(self, job: Callable[[], None]) -> None:
        # On the side stream, where the memory's tensors are written: on another one it would not wait for that.
        self.device.run(self._side, job)

    def run(self, job: Callable[[], object]) -> None:
        failed = list[Exception]()

        def guarded() -> None:
            try:
                job()
            except Exception as error:
                failed.append(peer_error(error))

        self.device.run(self._side, guarded)
        self.device.synchronize(self._side)
        if failed:
            raise failed[0]

    def abandon(self) -> None:
        self._undo_unfinished()
        self.device.synchronize(self._side)

    def failed(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        future = self.device.future()
        future.set_result(buffer.zero_())
        return future

    def detached(self, memory: Memory) -> Memory:
        # The memory's tensors belong to the side stream. Whoever uses it next adds it to gradients of the current one.
        copied, current = ResidualMemory(), self.device.current_stream()
        self.device.run(current, lambda: copied.load_state_dict(memory.state_dict()))
        self.device.synchronize(current)  # the originals may be freed from now on
        return copied

    def close(self) -> bool:
        self._undo_unfinished()
        end, patience = self.device.record_event(self._side), time.monotonic() + _PATIENCE_SECONDS
        while not end.query():  # not ``synchronize``, which would wait forever for a rank that is gone
            if time.monotonic() > patience:
                log.error("the device does not end the exchange: what other ranks have not sent is missing")
                return False
            time.sleep(0.0005)
        return True

    # -- on the host, in the thread that calls the hook -------------------------------------------------------

    def _fresh(self, plan: StepPlan, number: int, surveyed: bool) -> DeviceStep:
        step = DeviceStep(plan, number, Survey(surveyed))
        if self._host is not None:
            step.mean_sq = None  # a rank's gradient is the mean of its host's already
        return step

    def _running(self, bucket: Bucket) -> DeviceStep:
        """Return the running step, or a fresh record of it if a backward before this one did not end."""
        step = self._step
        assert step is not None
        if bucket.number == 0:
            self._timer.restart()
            if step.buckets:
                step = self._step = self._fresh(step.plan, step.number, step.survey.wanted)
                step.begins_again = True
        return step

    def _undo_unfinished(self) -> None:
        """Undo in the memory what a backward sent that did not end."""
        step = self._step
        if step is not None and step.buckets and step.ended is None:
            self.device.run(self._side, partial(self._undo, step.buckets))
            step.buckets = []

    def _queue_early(self, step: DeviceStep) -> None:
        """Queue the decoding of what may be decoded already, so that its payloads take memory no longer.

        The newest bucket is not waited for: the network has that one to send meanwhile.
        """
        early = QueuedPhase.QUEUED, QueuedPhase.FREE
        waiting = [queued for queued in step.buckets[-2:-1] if queued.phase in early]
        if waiting and self._link is not None:
            self.device.wait_stream(self._side, self._line)
        for queued in waiting:
            self.device.run(self._side, partial(self._decode_early, step, queued))

    def _queue_end(self, step: DeviceStep) -> None:
        device, side = self.device, self._side
        # Now, on the training thread: what the announcement says may change before the device runs any of this.
        fingerprint, directive = self._announcement.fingerprint(), self._announcement.directive
        step.sums.slow = float(self._announcement.slow)
        device.run(side, partial(self._sum_tick, step, directive, fingerprint))
        waiting_since = self._timer.mark(side)
        if self._link is not None:
            device.wait_stream(side, self._line)
        device.run(side, partial(self._decide, step, waiting_since))
        for queued in step.buckets:
            device.run(side, partial(self._finish, step, queued))
        if self._host is not None:
            for queued in step.buckets:  # by now all means are on their way
                device.run(side, partial(self._join, step, queued))
        device.run(side, partial(self._fetch, step))
        step.ended = device.record_event(side)

    def _fail(self, step: DeviceStep, queued: QueuedBucket, error: Exception) -> None:
        """Let ``check`` and ``wait_step`` raise an error, and give the trainer zeros. It never raises."""
        submitted = queued.submitted.whole or queued.submitted
        log.error("the exchange of bucket %d failed: %s", submitted.bucket.number, error)
        step.error = step.error or error
        if submitted.future.done():
            return
        try:
            submitted.out.zero_()
        except Exception:
            log.exception("the gradients of bucket %d are undefined", submitted.bucket.number)
        submitted.future.set_result(submitted.out)

    # -- on the side stream -----------------------------------------------------------------------------------

    def _encode(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Encode a bucket and issue its collective, or leave both to a later bucket of its group."""
        try:
            if self._broken is not None:
                raise self._broken
            if step.begins_again:
                self._ticks.forget()
                step.begins_again = False
            if self._host is not None:
                self._divide(step, queued, self._host)
            queued.channel = self.channels.begin(queued.submitted.bucket, step.plan)
            if not self._offer(step, queued):
                self._send(step, queued)
        except Exception as error:
            queued.error = self._broken = error

    def _divide(self, step: DeviceStep, queued: QueuedBucket, host: HostLevel) -> None:
        """Make a bucket this rank's piece of the host's mean."""
        begin = self._timer.mark(self._side)
        queued.submitted = host.divide(queued.submitted)
        step.activity.append(("inside", begin, self._timer.mark(self._side)))

    def _offer(self, step: DeviceStep, queued: QueuedBucket) -> bool:
        """Put a bucket into a group, if it goes with one. Issue the group's collective if nothing follows in it."""
        channel, submitted, offer = queued.channel, queued.submitted, None
        if not step.sharded:
            known = channel, step.plan, submitted.buffer
            layout = self._messages.layout(*known) or self._rounded.layout(*known)
            offer = None if layout is None else GroupOffer(channel, layout, submitted.buffer, submitted.out)
        if step.opened and (offer is None or not offer.joins(step.opened[0][1])):
            self._send_group(step)  # first: the order of collectives is equal on all ranks
        if offer is None:
            self._pass_on(step, None)
            return False
        queued.phase = QueuedPhase.SENT
        step.dense_bytes += submitted.buffer.nbytes
        step.opened.append((queued, offer))
        if submitted.last or is_full([one for _, one in step.opened]):
            self._send_group(step)
        if submitted.last:
            self._pass_on(step, None)
        return True

    def _send(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Encode a bucket that goes with no other, and issue its collective."""
        channel, submitted, plan = queued.channel, queued.submitted, step.plan
        gradient, number, queued.phase = submitted.buffer, submitted.bucket.number, QueuedPhase.SENT
        begin = self._timer.mark(self._side)
        try:
            quick = channel.sends_raw(plan) and gradient.numel() and not gradient.is_sparse
            if quick and not (step.survey.wanted or step.sharded) and self._messages.able:
                channel.begin_raw(gradient)
                square(gradient, self._ticks.row(number))
                exchange, queued.raw = None, True
            else:
                key = self._key(step, number)
                exchange, queued.raw, unresolved = channel.encode(plan, gradient, key, step.sums, step.survey)
                if exchange is not None and not unresolved:
                    queued.phase = QueuedPhase.FREE
            queued.transfer = exchange or self._dense(submitted)
            if exchange is None and submitted.whole is not None and self._host is not None:
                self._host.note(submitted, queued.transfer.work)
            step.payload_bytes += queued.transfer.payload_bytes
            step.dense_bytes += queued.transfer.payload_bytes if exchange is None else gradient.nbytes
        finally:
            step.activity.append(("compress", begin, self._timer.mark(self._side)))

    def _send_group(self, step: DeviceStep) -> None:
        """Issue the collective of the buckets that wait for it."""
        opened, step.opened = step.opened, []
        begin = self._timer.mark(self._side)
        offers = [offer for _, offer in opened]
        common = step.plan, offers, step.sums, step.survey, self._ticks.row
        sent: list[SentMessage] | list[SentRounded]
        try:
            # The last one's first: it may replace all rows.
            self._ticks.row(max(queued.submitted.bucket.number for queued, _ in opened))
            if isinstance(offers[0].layout, RoundedLayout):
                sent = self._rounded.send(*common, lambda number: self._key(step, number))
            else:
                sent = self._messages.send(*common)
            for number, (queued, _) in enumerate(opened):
                queued.message = sent[number]
                step.payload_bytes += sent[number].payload_bytes
            self._pass_on(step, sent[0].group)
        except Exception as error:
            for queued, _ in opened:
                queued.error = error
            raise
        finally:
            step.activity.append(("compress", begin, self._timer.mark(self._side)))

    def _pass_on(self, step: DeviceStep, group: SentGroup | SentRoundedGroup | None) -> None:
        """Issue the second collective of the group before this one, which is in flight now: until then the stream need
        not wait for the first. Where a link is emulated, do so of this one too.
        """
        before, step.halfway = step.halfway, None
        if before is not None:
            before.pass_on()
        if group is not None and group.halfway:
            if self._link is None:
                step.halfway = group
            else:
                group.pass_on()

    def _key(self, step: DeviceStep, number: int) -> Key:
        return Key(SEED, step.number, number, self._rank)

    def _hold_up(self, step: DeviceStep, queued: QueuedBucket, link: Link) -> None:
        """Keep the link's stream busy for as long as the emulated link needs for a bucket."""
        try:
            if queued.sent is not None:
                self.device.wait_work(queued.sent.work)
                self.device.delay(link.seconds(queued.sent.sent_bytes))
        except Exception as error:
            queued.error = error

    def _sum_tick(self, step: DeviceStep, directive: Directive, fingerprint: tuple[int, int, int]) -> None:
        try:
            if self._broken is not None:
                raise self._broken
            statistics = self.channels.aggregators[step.plan.codec].local_statistics()
            numbers = self.tick_codec.numbers(
                step.sums, directive, fingerprint, statistics, self.channels.raw_mean.pop()
            )
            step.tick, step.tick_work = self._ticks.sum(numbers)
        except Exception as error:
            step.error = step.error or error

    def _decide(self, step: DeviceStep, waiting_since: int) -> None:
        """Let the side stream wait for all transfers, and compute whether the step counts.

        Args:
            step: The step.
            waiting_since: The mark from which on the stream has nothing else to do.
        """
        for queued in step.buckets:
            try:
                self._arrive(step, queued)
            except Exception as error:
                queued.error = error
        try:
            if step.tick is not None and step.tick_work is not None:
                self.device.wait_work(step.tick_work)
                step.counts = self._ticks.counts(step.tick, step.fitting)
        except Exception as error:
            step.error = step.error or error
        step.activity.append(("communicate", waiting_since, self._timer.mark(self._side)))

    def _arrive(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Let the side stream wait for what a bucket sent, and look whether its mean fits."""
        if self._link is None and queued.sent is not None:  # else its stream has waited
            self.device.wait_work(queued.sent.work)
        if queued.transfer is not None:
            fits = self.channels.means.fits(queued.transfer, queued.submitted.out, queued.in_place)
            if fits is not None:
                step.fitting.append(fits)

    def _decode_early(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Write the mean of a bucket whose gradient nothing needs any more, and drop its payloads."""
        if queued.phase is not QueuedPhase.FREE or queued.transfer is None or queued.error is not None:
            return
        begin = arrived = self._timer.mark(self._side)
        try:
            self._arrive(step, queued)
            arrived = self._timer.mark(self._side)
            self.channels.means.write_unread(queued.transfer, queued.submitted.out, False)
            queued.phase, queued.transfer = QueuedPhase.DECODED, None
        except Exception as error:
            queued.error = error
        ended = self._timer.mark(self._side)
        step.activity += [("communicate", begin, arrived), ("decompress", arrived, ended)]

    def _finish(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Settle the memory, write the mean into the buffer, and complete the future."""
        submitted, begin = queued.submitted, -1
        try:
            arrived = queued.sent is not None or queued.phase is QueuedPhase.DECODED
            if queued.error is not None or not arrived or step.counts is None:
                raise queued.error or step.error or RuntimeError("no tick")
            step.raw &= queued.raw
            if queued.message is None or not queued.message.group.decoded:
                begin = self._timer.mark(self._side)
            if queued.message is not None:
                step.mean_sq = None
                queued.message.resolve(step.counts)
                self._hand_over(step, queued)
                return
            if queued.transfer is not None:
                # Before the mean overwrites the gradient, which may have to undo the step.
                if not submitted.buffer.is_sparse:
                    queued.channel.resolve(submitted.buffer, step.counts)
                self.channels.means.write_unread(queued.transfer, submitted.out, queued.in_place)
            if queued.raw and step.mean_sq is not None and (step.survey.wanted or not self._messages.able):
                step.mean_sq = step.mean_sq + norm_sq(submitted.out)
            else:
                step.mean_sq = None
            if not (queued.raw or submitted.out.is_sparse):
                # NaN if the step does not count, as plain DDP would give: nobody can stop the optimizer in time. A raw
                # mean shows it by itself.
                submitted.out.mul_(factor_of(step.counts))
            self._hand_over(step, queued)
        except Exception as error:
            self._fail(step, queued, error)
        finally:
            if begin >= 0:
                step.activity.append(("decompress", begin, self._timer.mark(self._side)))

    def _hand_over(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Give the trainer a bucket's mean, or send that of a piece to the other ranks of the host.

        Raises:
            Exception: A collective raised it, of this bucket or of one before it.
        """
        submitted = queued.submitted
        if submitted.whole is None:
            submitted.future.set_result(submitted.out)
            return
        assert self._host is not None
        self._host.note(submitted, None)
        if step.error is not None:  # the others may wait for other means than this
            raise step.error
        senders = queued.channel.senders
        try:
            queued.works = self._host.gather(submitted, senders)
        except Exception as error:
            self._broken = error
            raise
        step.inside_bytes += self._host.nbytes(submitted, senders)

    def _join(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Put the mean of a bucket together from its pieces, and give it to the trainer."""
        piece, whole = queued.submitted, queued.submitted.whole
        if whole is None or whole.future.done():  # it was not divided, or failed
            return
        assert self._host is not None
        channel = queued.channel
        begin = arrived = self._timer.mark(self._side)
        try:
            for work in queued.works:
                self.device.wait_work(work)
            arrived = self._timer.mark(self._side)
            channel.show(whole.bucket, self._host.join(piece, channel.senders))
            if whole.factor != 1.0:
                whole.buffer.mul_(whole.factor)
            whole.future.set_result(whole.out)
        except Exception as error:
            self._fail(step, queued, error)
        ended = self._timer.mark(self._side)
        step.activity += [("inside", begin, arrived), ("decompress", arrived, ended)]

    def _deliver(self, step: DeviceStep, queued: QueuedBucket) -> None:
        """Write a mean that is used before the tick is there. The memory can undo the step without the gradient."""
        submitted, begin = queued.submitted, self._timer.mark(self._side)
        arrived = begin
        try:
            if queued.error is not None or queued.transfer is None:
                raise queued.error or RuntimeError("nothing was sent")
            if self._link is None:  # else its stream has waited
                self.device.wait_work(queued.transfer.work)
            arrived = self._timer.mark(self._side)
            queued.transfer.mean_into(submitted.out)
            if submitted.factor != 1.0 and not queued.in_place:
                submitted.out.mul_(submitted.factor)
            step.raw &= queued.raw
            if queued.raw and step.mean_sq is not None:
                ranks = self.channels.aggregator.communicator.size
                part = submitted.part_of_norm(norm_sq(submitted.out), ranks)
                step.mean_sq = step.sums.shards_sq = step.mean_sq + part
            else:
                step.mean_sq = None
            if submitted.whole is not None:
                self._hand_over(step, queued)
        except Exception as error:
            self._fail(step, queued, error)
        ended = self._timer.mark(self._side)
        step.activity += [("communicate", begin, arrived), ("decompress", arrived, ended)]
        if self._host is not None:
            self._join(step, queued)

    def _mark_lost(self, step: DeviceStep, gradients: list[Tensor]) -> None:
        """Make gradients NaN if the step does not count. A codec or a row of the mean may leave out what was bad."""
        if step.counts is not None and step.mean_sq is None and gradients:
            torch._foreach_mul_(gradients, factor_of(step.counts))

    def _fetch(self, step: DeviceStep) -> None:
        """Copy to the host's memory what ``wait_step`` reads."""
        if step.error is not None or step.tick is None or step.counts is None:
            return
        try:
            self._ticks.end(step.tick, step.counts, step.mean_sq)
            histograms = [one for tally in step.survey.unread for one in (tally.counts, tally.energies)]
            step.copies = self._ticks.fetch([step.tick, *histograms])
            step.buckets, step.survey.unread = [], []  # frees the payloads
        except Exception as error:
            step.error = error

    def _undo(self, buckets: list[QueuedBucket]) -> None:
        self._ticks.forget()
        for queued in buckets:
            if queued.message is not None:
                queued.message.undo()
            if queued.transfer is not None and not queued.submitted.buffer.is_sparse:
                queued.channel.resolve(queued.submitted.buffer, False)
