"""One message per rank and bucket: a codec, and the collective that suits it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.aggregators.base import Aggregator, digest, shapes_of
from gravac.aggregators.shortfall import Shortfall, aligned, split
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
from gravac.compressors.base import Compressor, Key, Payload, Size
from gravac.kernels import Scalar, SelectionHint
from gravac.memories.base import Bucket


@dataclass(slots=True)
class _Draft:
    owner: "OneShot"
    codec: Compressor
    tensors: Bucket
    payloads: dict[float, Payload]
    x: Tensor | None
    key: Key
    dtype: torch.dtype

    def kept_energy(self, cf: float) -> Scalar:
        if self.x is None:
            return 0.0
        kept = self.codec.kept_energy(self.payloads[cf], self.x)
        return kept * self.owner.shortfall.expected(self.tensors.number, cf)

    def send(self, cf: float) -> Exchange:
        payload = self.payloads[cf]
        collective = self.owner.collective(self.tensors, self.codec, cf, self.dtype)
        exchange = collective.exchange(self.codec, payload, self.x, self.key, self.dtype)
        if exchange.payload is not payload and self.x is not None:  # the collective passed on something else
            chosen = self.codec.kept_energy(payload, self.x)
            through = aligned(exchange.codec, exchange.payload, self.x)
            self.owner.shortfall.record(self.tensors.number, cf, chosen, through)
        return exchange


class OfCodec(Aggregator):
    """An aggregator that learns what its codec learns, and nothing else.

    Args:
        compressor: The codec.
        group: The ranks that average.
        elements: Elements of the whole model, for codecs that look beyond a tensor; None if a tensor is the whole.
    """

    def __init__(
        self, compressor: Compressor, group: dist.ProcessGroup | Communicator, elements: int | None
    ) -> None:
        super().__init__(group)
        self.compressor = compressor if elements is None else compressor.for_model(elements)
        self.name, self.source = compressor.name, compressor.source

    def sizes(self, tensors: Bucket) -> tuple[Size, ...]:
        return self.compressor.sizes()

    def local_statistics(self) -> list[float]:
        return self.compressor.local_statistics()

    def apply_mean_statistics(self, means: Sequence[float]) -> None:
        self.compressor.apply_mean_statistics(means)

    def commit(self) -> None:
        self.compressor.commit()

    def rollback(self) -> None:
        self.compressor.rollback()

    def commit_where(self, counts: Tensor) -> None:
        self.compressor.commit_where(counts)

    def state_dict(self) -> dict[str, Tensor]:
        return self.compressor.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.compressor.load_state_dict(state)

    def state_digest(self) -> str:
        state = self.compressor.state_dict()
        return digest(state) if state else ""


class OneShot(OfCodec):
    """Compresses, exchanges, decodes. Linear codecs are all-reduced; the payloads of others meet by ``collective``.

    If the codec is nested, the stronger of two levels is made from the weaker one (GraVAC §III-C).

    Args:
        compressor: The codec.
        group: The ranks that average, as a process group or a communicator.
        collective: Name and settings of a collective; ``auto`` takes the quickest one on ``network``.
        network: Latency and bandwidth, equal on all ranks; None: ``auto`` gathers.
        elements: Elements of the whole model, for codecs that look beyond a bucket; None if a tensor is the whole.

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
    ) -> None:
        super().__init__(compressor, group, elements)
        check(collective, compressor)
        self.chooser = CollectiveChooser(self.communicator, collective, network)
        self.shortfall = Shortfall()
        self._fitted: dict[tuple[tuple[int, ...], ...], Compressor] = {}

    def prepare(
        self,
        tensors: Bucket,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        hint: SelectionHint | None = None,
    ) -> _Draft:
        """Compress ``x`` to ``cfs``; see ``Aggregator.prepare``.

        Raises:
            ValueError: A payload does not have the size that the codec declares. The other ranks rely on that size, so
                it is checked before anything is sent.
        """
        codec = self.codec_for(tensors)
        self.compressor.observe(x, cfs)
        payloads = codec.levels(x, cfs, key, dtype, hint)
        for payload in payloads:
            codec.layout(payload.numel, payload.cf, dtype).check(payload)
        return _Draft(self, codec, tensors, dict(zip(cfs, payloads, strict=True)), x, key, dtype)

    @property
    def sync_free(self) -> bool:  # type: ignore[override]  # it depends on the codec and the collective
        traits = self.compressor.traits
        return traits.sync_free and (traits.linear or self.chooser.sync_free)

    @property
    def keeps_largest(self) -> bool:
        return self.compressor.uses_histogram and self.chooser.sends_all

    def uses_histogram(self, gradient: Tensor) -> bool:
        return self.compressor.uses_histogram and kernels.compiled(gradient)

    def blank(
        self, tensors: Bucket, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> _Draft:
        codec = self.codec_for(tensors)
        payload = codec.blank(sum(tensors.numels), cf, key, dtype, device, value)
        return _Draft(self, codec, tensors, {cf: payload}, None, key, dtype)

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        workload = Workload(self.codec_for(tensors), sum(tensors.numels), cf, dtype, ranks)
        return self.chooser.choose(workload).payload_bytes(workload)

    def collective(self, tensors: Bucket, codec: Compressor, cf: float, dtype: torch.dtype) -> Collective:
        """Return the collective for the payloads of these tensors, the same on all ranks."""
        return self.chooser.choose(Workload(codec, sum(tensors.numels), cf, dtype, self.communicator.size))

    def codec_for(self, tensors: Bucket) -> Compressor:
        """Return the codec fitted to the shapes of these tensors."""
        shapes = shapes_of(tensors)
        if shapes not in self._fitted:
            if len(self._fitted) > 4096:  # regrouped buckets of a very long run
                self._fitted.clear()
            self._fitted[shapes] = self.compressor.fitted(shapes)
        return self._fitted[shapes]

    def use(self, network: Network, sync_free: bool = False) -> None:
        """Choose collectives for this network from now on. All ranks must pass equal arguments.

        Args:
            network: The measured network.
            sync_free: Choose only among collectives that read nothing from a device.
        """
        self.chooser.use(network, sync_free)

    def notes(self) -> list[str]:
        return self.chooser.notes()

    def commit(self) -> None:
        super().commit()
        self.shortfall.commit()

    def rollback(self) -> None:
        super().rollback()
        self.shortfall.rollback()

    def commit_where(self, counts: Tensor) -> None:
        super().commit_where(counts)
        self.shortfall.commit_where(counts)

    def state_dict(self) -> dict[str, Tensor]:
        # The digest leaves the shortfall out: each rank has its own, and only what the codec learned is equal.
        return super().state_dict() | self.shortfall.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        own, rest = split(state)
        super().load_state_dict(rest)
        self.shortfall.load_state_dict(own)
