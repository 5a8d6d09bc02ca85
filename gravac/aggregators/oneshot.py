"""One message per rank and bucket: a codec, and the collective that suits it."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators.base import Aggregator, BucketAggregator, shapes_of
from gravac.aggregators.shortfall import aligned
from gravac.collectives import (
    AUTO,
    Collective,
    CollectiveChooser,
    Communicator,
    Exchange,
    Network,
    Workload,
    check,
)
from gravac.compressors.base import Compressor, Key, Layout, Payload, Size
from gravac.kernels import Scalar, SelectionHint, backend
from gravac.memories.bucket import Bucket


@dataclass(slots=True)
class _Draft:
    part: "CodecBucket"
    payloads: dict[float, Payload]
    x: Tensor | None
    key: Key
    dtype: torch.dtype

    def kept_energy(self, cf: float) -> Scalar:
        if self.x is None:
            return 0.0
        kept, shortfall = self.part.codec.kept_energy(self.payloads[cf], self.x), self.part.shortfall
        return kept * shortfall.expected(cf) if shortfall.shares else kept

    def send(self, cf: float) -> Exchange:
        part, payload, x = self.part, self.payloads[cf], self.x
        sender, layout = part.sender(cf, self.dtype), part.layout(cf, self.dtype)
        exchange: Exchange = sender.exchange(layout, payload, x, self.key)
        if exchange.payload is not payload and x is not None:  # the collective passed on something else
            chosen = part.codec.kept_energy(payload, x)
            part.record(cf, chosen, aligned(exchange.codec, exchange.payload, x))
        return exchange


class CodecBucket(BucketAggregator):
    """A bucket's codec, and for each CF and dtype the layout of its payloads and what sends them.

    Args:
        aggregator: The aggregator.
        bucket: The tensors that its gradients are made of.
        codec: The codec, fitted to these tensors.
    """

    aggregator: "OfCodec"

    def __init__(self, aggregator: "OfCodec", bucket: Bucket, codec: Compressor) -> None:
        super().__init__(aggregator, bucket)
        self.codec = codec
        self._observes = type(aggregator.compressor).observe is not Compressor.observe
        self.layout = layout = cache(partial(codec.layout, self.numel))
        """The layout of payloads, by CF and dtype."""
        self.sender = cache(lambda cf, dtype: aggregator.sender(layout(cf, dtype)))
        """What sends payloads, by CF and dtype; the same on all ranks. It depends on the network."""

    def prepare(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> _Draft:
        if self._observes:
            self.aggregator.compressor.observe(x, cfs)
        payloads = dict(zip(cfs, self.codec.levels(x, cfs, key, dtype, hint), strict=True))
        for cf, payload in payloads.items():
            self.layout(cf, dtype).check(payload)
        return _Draft(self, payloads, x, key, dtype)

    def blank(self, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float) -> _Draft:
        payload = self.codec.blank(self.numel, cf, key, dtype, device, value)
        return _Draft(self, {cf: payload}, None, key, dtype)


class OfCodec(Aggregator):
    """An aggregator that learns what its codec learns.

    Args:
        compressor: The codec.
        group: The ranks that average.
        elements: Elements of the whole model, for codecs that look beyond a tensor; None if a tensor is the whole.
    """

    def __init__(
        self, compressor: Compressor, group: dist.ProcessGroup | Communicator, elements: int | None
    ) -> None:
        self.compressor = compressor if elements is None else compressor.for_model(elements)
        super().__init__(group, self.compressor)
        self.name, self.source = compressor.name, compressor.source

    @abstractmethod
    def sender(self, layout: Layout) -> Any:
        """Return what sends payloads of a layout, by ``exchange`` as a ``Collective`` does."""

    def sizes(self, tensors: Bucket) -> tuple[Size, ...]:
        return self.compressor.sizes()

    @property
    def leaves_out(self) -> bool:
        return self.compressor.leaves_out


class OneShot(OfCodec):
    """Compresses, exchanges, decodes. Linear codecs are all-reduced; the payloads of others meet by ``collective``.

    If the codec is nested, the stronger of two levels is made from the weaker one (GraVAC §III-C).

    Args:
        compressor: The codec.
        group: The ranks that average, as a process group or a communicator.
        collective: Name and settings of a collective; ``auto`` takes the quickest one on ``network``.
        network: Latency and bandwidth, equal on all ranks; None: ``auto`` gathers.
        elements: Elements of the whole model, for codecs that look beyond a bucket; None if a tensor is the whole.
        aged: Whether every optimizer is of ``gravac.optim``, with a usual β₁, for which ``auto`` may choose ``owners``.

    Raises:
        ValueError: The collective is unknown, or the codec's payloads cannot meet that way.
    """

    def __init__(
        self,
        compressor: Compressor,
        group: dist.ProcessGroup | Communicator,
        collective: str = AUTO,
        network: Network | None = None,
        elements: int | None = None,
        aged: bool = False,
    ) -> None:
        super().__init__(compressor, group, elements)
        check(collective, compressor)
        self.chooser = CollectiveChooser(self.communicator, collective, network, aged)
        self._open: WeakSet[CodecBucket] = WeakSet()  # channels keep them

    def open(self, bucket: Bucket) -> CodecBucket:
        part = CodecBucket(self, bucket, self.compressor.fitted(shapes_of(bucket)))
        self._open.add(part)
        return part

    def sender(self, layout: Layout) -> Collective:
        return self.chooser.choose(Workload.of(layout, self.communicator.size))

    @property
    def sync_free(self) -> bool:  # type: ignore[override]  # it depends on the codec and the collective
        traits = self.compressor.traits
        return traits.sync_free and (traits.linear or self.chooser.sync_free)

    @property
    def keeps_largest(self) -> bool:
        return self.compressor.uses_histogram and self.chooser.sends_all

    def uses_histogram(self, gradient: Tensor) -> bool:
        host = self.compressor.uses_histogram and gradient.is_cpu and not backend.treated
        return host and backend.host is not None and gradient.is_contiguous()

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        codec = self.compressor.fitted(shapes_of(tensors))
        workload = Workload(codec, sum(tensors.numels), cf, dtype, ranks)
        return self.chooser.choose(workload).payload_bytes(workload)

    def use(self, network: Network) -> None:
        """Choose collectives for this network from now on. All ranks must pass equal arguments.

        Args:
            network: The measured network.
        """
        self.chooser.use(network)
        for part in self._open:
            part.sender.cache_clear()

    def notes(self) -> list[str]:
        return self.chooser.notes()
