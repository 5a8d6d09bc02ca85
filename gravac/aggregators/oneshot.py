"""One message a rank and bucket: a codec and the collective that suits it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.aggregators.base import Aggregator, Flight, Tensors, shapes_of
from gravac.collectives import Collective, Communicator, Exchange, choose
from gravac.collectives.communicator import Work
from gravac.compressors.base import Compressor, Key, Payload
from gravac.kernels import Tally


@dataclass(slots=True)
class _Flight:
    work: Work
    sent_bytes: int
    payload_bytes: int
    codec: Compressor
    payload: Payload
    exchange: Exchange

    def mean_into(self, out: Tensor) -> None:
        self.exchange.mean_into(out)


@dataclass(slots=True)
class _Draft:
    codec: Compressor
    collective: Collective
    payloads: dict[float, Payload]
    x: Tensor | None
    key: Key
    dtype: torch.dtype

    def kept_energy(self, cf: float) -> float:
        return 0.0 if self.x is None else self.codec.kept_energy(self.payloads[cf], self.x)

    def send(self, cf: float) -> Flight:
        payload = self.payloads[cf]
        exchange = self.collective.exchange(self.codec, payload, cf, self.key, self.dtype)
        return _Flight(
            exchange.work, exchange.sent_bytes, exchange.payload_bytes, self.codec, payload, exchange
        )


class OneShot(Aggregator):
    """Compress, exchange, decode. Linear codecs are all-reduced, the others gathered.

    Two levels are nested where the codec is (multi-level compression, GraVAC §III-C).
    """

    def __init__(self, compressor: Compressor, group: dist.ProcessGroup | Communicator) -> None:
        super().__init__(group)
        self.compressor = compressor
        self.collective = choose(compressor, self.communicator)
        self.name, self.source = compressor.name, compressor.source
        self._fitted: dict[tuple[tuple[int, ...], ...], Compressor] = {}

    def prepare(
        self,
        tensors: Tensors,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        counted: Tally | None = None,
    ) -> _Draft:
        codec = self.codec_for(tensors)
        payloads = codec.levels(x, cfs, key, dtype, counted)
        return _Draft(codec, self.collective, dict(zip(cfs, payloads, strict=True)), x, key, dtype)

    @property
    def keeps_largest(self) -> bool:
        return self.compressor.counts

    def counts(self, gradient: Tensor) -> bool:
        return self.compressor.counts and kernels.compiled(gradient)

    def blank(
        self, tensors: Tensors, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> _Draft:
        codec = self.codec_for(tensors)
        payload = codec.blank(sum(tensors.numels), cf, key, dtype, device, value)
        return _Draft(codec, self.collective, {cf: payload}, None, key, dtype)

    def wire_bytes(self, tensors: Tensors, cf: float, dtype: torch.dtype, ranks: int) -> int:
        return self.codec_for(tensors).wire_bytes(sum(tensors.numels), cf, dtype)

    def codec_for(self, tensors: Tensors) -> Compressor:
        """The codec fitted to these shapes."""
        shapes = shapes_of(tensors)
        if shapes not in self._fitted:
            if len(self._fitted) > 4096:  # regrouped buckets of a very long run
                self._fitted.clear()
            self._fitted[shapes] = self.compressor.fitted(shapes)
        return self._fitted[shapes]

    def commit(self) -> None:
        self.compressor.commit()

    def rollback(self) -> None:
        self.compressor.rollback()

    def state_dict(self) -> dict[str, Tensor]:
        return self.compressor.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.compressor.load_state_dict(state)
