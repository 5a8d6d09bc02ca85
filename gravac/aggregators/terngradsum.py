"""TernGrad with one scale for all ranks: ternaries are summed as integers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators.base import Aggregator, BucketAggregator, shapes_of
from gravac.aggregators.shortfall import aligned
from gravac.aggregators.ternary import pack_sums, unpack_sums, words
from gravac.collectives import Communicator, Exchange, ring_bytes
from gravac.compressors.base import Key, Payload
from gravac.compressors.quantize.terngrad import ClippedTernGrad, TernGrad
from gravac.kernels import Scalar, SelectionHint, finite_or_zero, pack
from gravac.memories.bucket import Bucket


@dataclass(slots=True)
class _InFlight(Exchange):
    codec: TernGrad
    sums: Tensor
    scales: Tensor
    ranks: int

    def mean_into(self, out: Tensor) -> None:
        total = unpack_sums(self.sums, out.numel(), self.ranks) - self.ranks
        out.copy_((total.float() / self.ranks) * self.codec.spread(self.scales, out.numel()))

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), self.sums, self.scales)


@dataclass(slots=True)
class _Draft:
    part: "_Bucket"
    x: Tensor
    key: Key
    dtype: torch.dtype
    own: dict[float, Scalar] = field(default_factory=dict)

    def kept_energy(self, cf: float) -> Scalar:
        return self.own_energy(cf) * self.part.shortfall.expected(cf)

    def own_energy(self, cf: float) -> Scalar:
        """Return the energy that this rank's own scales keep. The shared scales are at least as large."""
        if cf not in self.own:
            codec = self.part.codec
            self.own[cf] = codec.kept_energy(codec.compress(self.x, cf, self.key, self.dtype), self.x)
        return self.own[cf]

    def send(self, cf: float) -> Exchange:
        communicator, codec = self.part.aggregator.communicator, self.part.codec
        x, ranks = codec.clipped(self.x), communicator.size
        scales = codec.scales(x)
        scales = torch.where(scales.isnan(), torch.inf, scales)  # a maximum need not keep a NaN
        communicator.maximum(scales).wait()
        codes = codec.ternary(x, scales, self.key) + 1
        sums = pack_sums(codes, ranks)
        work = communicator.sum(sums)
        sent = Payload((finite_or_zero(scales), pack(codes, 2)), None, x.numel(), cf, self.key)
        payload_bytes = sums.nbytes + scales.nbytes
        sent_bytes = ring_bytes(payload_bytes, ranks)
        if ranks > 1:
            self.part.record(cf, self.own_energy(cf), aligned(codec, sent, self.x))
        return _InFlight(work, sent_bytes, payload_bytes, codec, sent, sums, scales, ranks)


class _Bucket(BucketAggregator):
    def __init__(self, aggregator: "TernGradSum", bucket: Bucket, codec: TernGrad) -> None:
        super().__init__(aggregator, bucket)
        self.codec = codec

    def prepare(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> _Draft:
        return _Draft(self, x, key, dtype)


class TernGradSum(Aggregator):
    """TernGrad with one scale per tensor for all ranks, so that the ternaries can be summed as integers.

    Round 1: the largest magnitude of each tensor over ranks. Round 2: the sum of all ranks' ternaries. ceil(log2(2N +
    1)) bits per element for N ranks, several elements per int32, and 4 bytes per tensor. ``clip``: clips each tensor to
    that many standard deviations first, which trades a bias for less variance.
    """

    name = "terngrad-sum"
    source = "Wen et al. 2017, TernGrad, scaler sharing"
    sync_free = True

    def __init__(self, group: dist.ProcessGroup | Communicator, *, clip: float | None = None) -> None:
        super().__init__(group)
        self._codec = TernGrad() if clip is None else ClippedTernGrad(clip=clip)

    def open(self, bucket: Bucket) -> _Bucket:
        return _Bucket(self, bucket, self._codec.fitted(shapes_of(bucket)))

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        return 4 * words(sum(tensors.numels), ranks) + 4 * len(tensors.numels)
