"""One message a rank and bucket: a codec and the collective that suits it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.aggregators.base import Aggregator, Flight, Tensors, digest, shapes_of
from gravac.aggregators.shortfall import Shortfall, aligned
from gravac.collectives import AUTO, Collective, Communicator, Load, Network, Ways, check
from gravac.compressors.base import Compressor, Key, Payload
from gravac.kernels import Known


@dataclass(slots=True)
class _Draft:
    owner: "OneShot"
    codec: Compressor
    tensors: Tensors
    payloads: dict[float, Payload]
    x: Tensor | None
    key: Key
    dtype: torch.dtype

    def kept_energy(self, cf: float) -> float:
        if self.x is None:
            return 0.0
        kept = self.codec.kept_energy(self.payloads[cf], self.x)
        return kept * self.owner.shortfall.expected(self.tensors.number, cf)

    def send(self, cf: float) -> Flight:
        payload = self.payloads[cf]
        way = self.owner.way(self.tensors, self.codec, cf, self.dtype)
        flight = way.exchange(self.codec, payload, self.x, cf, self.key, self.dtype)
        if flight.payload is not payload and self.x is not None:
            chosen = self.codec.kept_energy(payload, self.x)
            through = aligned(flight.codec, flight.payload, self.x)
            self.owner.shortfall.learn(self.tensors.number, cf, chosen, through)
        return flight


class OneShot(Aggregator):
    """Compress, exchange, decode. Linear codecs are all-reduced; others meet as ``collective`` says, by default the way
    that is quickest on ``network`` (None: gathered).

    Two levels are nested where the codec is (multi-level compression, GraVAC §III-C). ``elements``: of the whole model,
    for codecs that look beyond a bucket; None: each tensor is taken for all there is.
    """

    def __init__(
        self,
        compressor: Compressor,
        group: dist.ProcessGroup | Communicator,
        collective: str = AUTO,
        network: Network | None = None,
        elements: int | None = None,
    ) -> None:
        super().__init__(group)
        check(collective, compressor)
        self.compressor = compressor if elements is None else compressor.for_model(elements)
        self.ways = Ways(self.communicator, collective, network)
        self.shortfall = Shortfall()
        self.name, self.source = compressor.name, compressor.source
        self._fitted: dict[tuple[tuple[int, ...], ...], Compressor] = {}

    def prepare(
        self,
        tensors: Tensors,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        counted: Known | None = None,
    ) -> _Draft:
        codec = self.codec_for(tensors)
        self.compressor.observe(x, cfs)
        payloads = codec.levels(x, cfs, key, dtype, counted)
        return _Draft(self, codec, tensors, dict(zip(cfs, payloads, strict=True)), x, key, dtype)

    @property
    def keeps_largest(self) -> bool:
        return self.compressor.counts and self.ways.whole

    def counts(self, gradient: Tensor) -> bool:
        return self.compressor.counts and kernels.compiled(gradient)

    def blank(
        self, tensors: Tensors, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> _Draft:
        codec = self.codec_for(tensors)
        payload = codec.blank(sum(tensors.numels), cf, key, dtype, device, value)
        return _Draft(self, codec, tensors, {cf: payload}, None, key, dtype)

    def wire_bytes(self, tensors: Tensors, cf: float, dtype: torch.dtype, ranks: int) -> int:
        load = Load(self.codec_for(tensors), sum(tensors.numels), cf, dtype, ranks)
        return self.ways.of(load).payload_bytes(load)

    def way(self, tensors: Tensors, codec: Compressor, cf: float, dtype: torch.dtype) -> Collective:
        """How these tensors' payloads meet; the same on all ranks."""
        load = Load(codec, sum(tensors.numels), cf, dtype, self.communicator.size)
        return self.ways.of(load)

    def codec_for(self, tensors: Tensors) -> Compressor:
        """The codec fitted to these shapes."""
        shapes = shapes_of(tensors)
        if shapes not in self._fitted:
            if len(self._fitted) > 4096:  # regrouped buckets of a very long run
                self._fitted.clear()
            self._fitted[shapes] = self.compressor.fitted(shapes)
        return self._fitted[shapes]

    def use(self, network: Network) -> None:
        """Choose by this network from now on; all ranks must be told the same."""
        self.ways.use(network)

    def notes(self) -> list[str]:
        return self.ways.notes()

    def figures(self) -> list[float]:
        return self.compressor.figures()

    def learn(self, means: Sequence[float]) -> None:
        self.compressor.learn(means)

    def commit(self) -> None:
        self.compressor.commit()
        self.shortfall.commit()

    def rollback(self) -> None:
        self.compressor.rollback()
        self.shortfall.rollback()

    def state_dict(self) -> dict[str, Tensor]:
        return self.compressor.state_dict() | self.shortfall.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.compressor.load_state_dict(self.shortfall.load_state_dict(state))

    def agreed(self) -> str:
        # What the codec learnt is equal on all ranks; the shortfall is a rank's own.
        state = self.compressor.state_dict()
        return digest(state) if state else ""
