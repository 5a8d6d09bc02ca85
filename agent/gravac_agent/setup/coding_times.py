"""What coding takes on this job's own device: at the start, each plan encodes and decodes a bucket of noise."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import aggregators, memories
from gravac.collectives import ALONE, Exchange, Work
from gravac.compressors import Key
from gravac.kernels.backend import gpu_kernels
from gravac.kernels.device import rounded, tiled
from gravac.kernels.device.step_sums import ROW
from gravac.memories import Bucket
from gravac.protocol import PlanCost
from gravac_agent.devices import Device
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import NO_SURVEY
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.network.doubling import Doubling
from gravac_agent.setup import bucket_times
from gravac_agent.setup.bucket_times import BucketTime
from gravac_agent.streams.groups import GroupOffer
from gravac_agent.streams.messages import Messages, SentMessage
from gravac_agent.streams.rounded import RoundedMessages, SentRounded

log = logging.getLogger("gravac.agent")

HOST_BYTES, DEVICE_BYTES = 1 << 20, 25 << 20
"""Most bytes of the bucket: on the host so that all plans together take about 0.5 s, on a device a bucket of DDP."""
SMALL_ELEMENTS = 1 << 14
"""Elements of a bucket that shows what each one costs, where the job's are larger than the one that is measured."""
WARM, STEPS = 2, 3
"""Steps in which kernels and thresholds get warm, and those of which the quickest counts, as the other ranks measure on
the same cores."""


class Coded(NamedTuple):
    """Seconds of a plan in a step.

    Args:
        coding: Seconds of encoding and decoding.
        host: Seconds of the host that queues this for a device; 0 where the host itself does it.
    """

    coding: float
    host: float


UNMEASURED = Coded(math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """What a job encodes in a step.

    Attributes:
        elements: Elements of all of it.
        buckets: Buckets that it is exchanged in.
        dtype: Format of an element.
        device: The accelerator that it is on; None: the host's memory.
    """

    elements: int
    buckets: int
    dtype: torch.dtype
    device: Device | None = None


def measure_coding(
    costs: Sequence[PlanCost], compressor: str, memory: str, gradient: Gradient, ranks: int
) -> list[Coded]:
    """Return the seconds that each plan takes to encode and decode a gradient; infinite where that fails.

    On a device the host waits once, at the end.

    Args:
        costs: Costs of the plans.
        compressor: The job's, which plans name None.
        memory: The job's.
        gradient: The job's.
        ranks: Ranks that exchange; each decodes as many payloads, where a plan does not say how many.
    """
    bench, device = _Bench(memory, gradient), gradient.device
    texts = [f"{cost.codec or compressor}@{cost.cf!r}" for cost in costs]
    coded = {text: cost for text, cost in zip(texts, costs, strict=True) if cost.cf > 1.0}
    kept = {} if device is None else bucket_times.read(bench.parts)
    for text, cost in coded.items():
        if text not in kept:
            bench.run(text, cost.codec or compressor, cost.cf)
    found = kept | bench.read()
    if len(found) > len(kept) and device is not None:
        bucket_times.write(bench.parts, found)
    return [
        Coded(0.0, 0.0)
        if cost.cf == 1.0
        else bench.whole(found[text], ranks if cost.decoded is None else cost.decoded)
        if text in found
        else UNMEASURED
        for text, cost in zip(texts, costs, strict=True)
    ]


def with_coding(
    costs: Sequence[PlanCost], seconds: Sequence[Coded], group: dist.ProcessGroup
) -> tuple[PlanCost, ...]:
    """Return the costs with the coding times of the slowest rank. All ranks call it, and get the same.

    Args:
        costs: Equal on all ranks.
        seconds: Seconds of each, on this rank; infinite where it was not measured, so that what is stated stays.
        group: The ranks.
    """
    slowest = torch.tensor(seconds, dtype=torch.float64, device="cpu")
    Doubling(group).maximum(slowest).wait()
    return tuple(
        cost.model_copy(update={"coding_seconds": round(coding, 6), "host_seconds": round(host, 6)})
        if coding < 1e9
        else cost
        for cost, (coding, host) in zip(costs, slowest.tolist(), strict=True)
    )


class _Clock:
    """Stamps moments of the host, and of the device that works on what was queued by then."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._timer = None if device is None else device.timer()
        self._moments: list[float] = []
        self._worked: list[float] = []

    def stamp(self) -> None:
        if self._timer is not None and self._device is not None:
            self._timer.mark(self._device.current_stream())
        self._moments.append(time.perf_counter())
        self._worked.append(time.process_time())

    def host(self, first: int) -> BucketTime:
        """Return the seconds of the host between a stamp and the three after it, without those of other processes."""
        last = first + 4
        # Several threads work for longer than it takes.
        return BucketTime(*map(min, _between(self._moments[first:last]), _between(self._worked[first:last])))

    def work(self, first: int) -> BucketTime:
        """Return the seconds of the work: the device's, else the host's. The device must have reached it."""
        if self._timer is None:
            return self.host(first)
        return _between([self._timer.seconds(number) for number in range(first, first + 4)])

    def __len__(self) -> int:
        return len(self._moments)


class _Bench:
    """Measures plans, each by the channel that buckets of the training take, without a network.

    Args:
        memory: The job's.
        gradient: The job's.
    """

    def __init__(self, memory: str, gradient: Gradient) -> None:
        self.memory, self.gradient, self.device = memory, gradient, gradient.device
        most = HOST_BYTES if self.device is None else DEVICE_BYTES
        self._bucket = max(1, gradient.elements // gradient.buckets)
        self.count = min(self._bucket, most // gradient.dtype.itemsize)
        self._clock = _Clock(self.device)
        self._rows: dict[str, dict[int, list[int]]] = {}
        self._whole: set[str] = set()  # plans that the device sends in whole messages
        self._able = self.device is not None and gpu_kernels(self.device.device)
        place = torch.device("cpu") if self.device is None else self.device.device
        # The trainer's own random numbers stay what they are.
        noise = torch.Generator(device=place).manual_seed(0)
        self._noise = torch.randn(self.count, generator=noise, device=place, dtype=torch.float32).to(
            gradient.dtype
        )
        self._counts: bool | Tensor = True
        if self.device is not None:
            self._counts = torch.ones((), dtype=torch.bool, device=place)

    def run(self, text: str, codec: str, cf: float) -> None:
        """Take the times of a plan, which ``read`` returns by its text; of none that fails."""
        small = self.device is None and SMALL_ELEMENTS < self.count < self._bucket
        try:
            for count in (SMALL_ELEMENTS, self.count) if small else (self.count,):
                firsts = list(self._steps(text, codec, cf, self._noise[:count]))
                self._rows.setdefault(text, {}).setdefault(count, []).extend(firsts)
        except Exception:
            log.debug("coding with %s could not be measured", codec, exc_info=True)
            self._rows.pop(text, None)

    def read(self) -> dict[str, list[BucketTime]]:
        """Return what was measured of each plan: of a bucket, of the host that queues it, and of a small bucket."""
        if self.device is not None and self._rows:
            self.device.synchronize(self.device.current_stream())
        found = {}
        for text, rows in self._rows.items():
            work = {count: _quickest(map(self._clock.work, firsts)) for count, firsts in rows.items()}
            host = _quickest(map(self._clock.host, rows[self.count]))
            if text in self._whole:  # all payloads are decoded together, and two were
                work = {
                    count: one._replace(more=max(0.0, one.more - one.decode)) for count, one in work.items()
                }
                host = host._replace(more=0.0)
            found[text] = [work[self.count], host, work.get(SMALL_ELEMENTS, work[self.count])]
        return found

    def whole(self, found: Sequence[BucketTime], payloads: int) -> Coded:
        """Return the seconds of a whole gradient, of which so many payloads arrive."""
        work, host, small = (each.of(payloads) for each in found)
        if self.device is not None:
            return Coded(self.gradient.elements / self.count * work, self.gradient.buckets * host)
        if self.count < self._bucket and self.count > SMALL_ELEMENTS:
            slope = max(0.0, work - small) / (self.count - SMALL_ELEMENTS)
            work += slope * (self._bucket - self.count)
        return Coded(self.gradient.buckets * work, 0.0)

    @property
    def parts(self) -> list[str]:
        """All that the times depend on."""
        assert self.device is not None
        dtype, able = str(self.gradient.dtype), str(self._able)
        return [self.device.name, self.memory, dtype, str(self.count), able]

    def _steps(self, text: str, codec: str, cf: float, gradient: Tensor) -> Iterator[int]:
        """Encode and decode. Yield the number of the first of four stamps of each step that counts."""
        aggregator = aggregators.build(codec, ALONE)
        channels = Channels(memories.build(self.memory), (codec,), (aggregator,), gradients_stay=True)
        numel, clock = gradient.numel(), self._clock
        bucket = Bucket(0, ("",), (numel,), ((numel,),))
        plan = StepPlan(Directive(0, "hold", cf, cf, 0.0), cf)
        out, queued, able = torch.empty_like(gradient), 0.0, self._able
        messages, every = Messages(channels, able, Work.wait), RoundedMessages(channels, able, Work.wait)
        row = torch.zeros(ROW, dtype=torch.float64, device=gradient.device)
        counts = torch.as_tensor(self._counts, dtype=torch.bool, device=gradient.device)
        decode_two: Callable[[], None] | None = None
        for step in range(WARM + STEPS):
            # What comes next is not what came, and lies where it did.
            gradient.copy_(gradient.roll(numel // 3))
            if self.device is not None and queued:
                self.device.delay(2.0 * queued)  # else the device would wait for the host, and show its time
            first = len(clock)
            clock.stamp()
            channel = channels.begin(bucket, plan)
            known = channel, plan, gradient
            layout = messages.layout(*known) or every.layout(*known)
            if layout is not None:
                self._whole.add(text)
                common = (
                    plan,
                    [GroupOffer(channel, layout, gradient, out)],
                    StepSums(),
                    NO_SURVEY,
                    lambda _: row,
                )
                sent: SentMessage | SentRounded
                if isinstance(layout, tiled.TiledLayout):
                    (sent,) = messages.send(*common)
                else:
                    (sent,) = every.send(*common, partial(Key, 0, step, rank=0))
                clock.stamp()
                sent.resolve(counts)
                channels.commit()
                clock.stamp()
                decode_two = decode_two or _decode_of_two(sent, counts)
                decode_two()
            else:
                transfer = channel.encode(plan, gradient, Key(0, step, 0, 0), StepSums()).transfer
                if transfer is None:
                    raise ValueError(f"{codec} sends a bucket of {numel} elements densely")
                clock.stamp()
                channel.resolve(gradient, self._counts)
                if self.device is None:
                    channel.decode(transfer, out, False)
                else:
                    channels.means.write_unread(transfer, out, False)
                channels.commit()
                clock.stamp()
                if isinstance(transfer, Exchange):  # as another rank's, of whose codes nothing is kept
                    other = transfer.codec.rebuild(transfer.payload.parts, numel, cf, Key(0, step, 0, 1))
                    transfer.codec.decompress(other, out, 0.5)
            clock.stamp()
            if step >= WARM:
                yield first
            elif step:  # after the kernels were compiled
                queued = sum(clock.host(first))


def _decode_of_two(sent: SentMessage | SentRounded, counts: Tensor) -> Callable[[], None]:
    """Return what decodes the messages of two ranks that sent the same."""
    if isinstance(sent, SentMessage):
        buffers = tiled.TiledBuffers(sent.step.buffers.layout, counts.device)
        group, step = tiled.TiledGroup([buffers], 2), replace(sent.step, buffers=buffers, undone=None)
        group.arrived.copy_(sent.step.buffers.message.expand(2, -1))
        return partial(tiled.decode, group, counts, [step], 0)
    layout = replace(sent.member.buffers.layout, ranks=2)
    pair = rounded.RoundedBuffers(layout, 0, counts.device)
    both, member = rounded.RoundedGroup([pair]), sent.member._replace(buffers=pair, undone=False)
    both.arrived.copy_(sent.member.buffers.message.expand(2, -1))
    return partial(rounded.decode, both, [member], counts)


def _between(moments: Sequence[float]) -> BucketTime:
    return BucketTime(*(end - begin for begin, end in pairwise(moments)))


def _quickest(times: Iterable[BucketTime]) -> BucketTime:
    return BucketTime(*map(min, zip(*times, strict=True)))
