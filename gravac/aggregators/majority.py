"""signSGD with majority vote: one sign per rank and element, and the sign that most ranks have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.aggregators.base import Aggregator, BucketAggregator, shapes_of
from gravac.aggregators.ternary import pack_sums, unpack_sums, words
from gravac.collectives import Exchange, ring_bytes
from gravac.compressors.base import Key, Payload
from gravac.compressors.quantize.sign import ScaledSign
from gravac.kernels import Scalar, SelectionHint, alignment, finite_or_zero, pack, placed, scalar
from gravac.memories.bucket import Bucket


@dataclass(slots=True)
class _InFlight(Exchange):
    codec: ScaledSign
    votes: Tensor
    scales: Tensor
    ranks: int

    def mean_into(self, out: Tensor) -> None:
        total = unpack_sums(self.votes, out.numel(), self.ranks) - self.ranks
        out.copy_(total.sign())
        for piece, scale in zip(self.codec.pieces(out), self.scales, strict=True):
            piece.mul_(scale)

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), self.votes, self.scales)


@dataclass(slots=True)
class _Draft:
    part: "_Bucket"
    x: Tensor
    key: Key
    scales: Tensor  # this rank's own
    abstains: bool

    def kept_energy(self, cf: float) -> Scalar:
        return self._own() * self.part.shortfall.expected(cf)

    def send(self, cf: float) -> Exchange:
        communicator, codec = self.part.aggregator.communicator, self.part.codec
        ranks = communicator.size
        positive = self.x >= 0
        scales = self.scales / ranks
        communicator.sum(scales).wait()
        # A rank that abstains adds 1, halfway between the codes of the two signs.
        codes = torch.ones_like(positive, dtype=torch.int32) if self.abstains else 2 * positive.int()
        votes = pack_sums(codes, ranks)
        work = communicator.sum(votes)
        own = torch.zeros_like(scales) if self.abstains else finite_or_zero(scales)
        payload = Payload((own, pack(positive, 1)), None, self.x.numel(), cf, self.key)
        payload_bytes = votes.nbytes + scales.nbytes
        sent_bytes = ring_bytes(payload_bytes, ranks)
        if ranks > 1:
            self.part.record(cf, self._own(), self._through(scales))
        return _InFlight(work, sent_bytes, payload_bytes, codec, payload, votes, scales, ranks)

    def _own(self) -> Scalar:
        """Return the energy that the signs keep with this rank's own scales: Σ n·s² over tensors."""
        return scalar((self._sizes() * self.scales.double().square()).sum())

    def _through(self, scales: Tensor) -> Scalar:
        """Return that energy with the scales t of all ranks: ⟨C(x), x⟩² / ‖C(x)‖² = (Σ n·s·t)² / Σ n·t²."""
        sizes, mean = self._sizes(), scales.double()
        energy = scalar((sizes * mean.square()).sum())
        return alignment(energy, scalar((sizes * self.scales.double() * mean).sum()))

    def _sizes(self) -> Tensor:
        return placed(
            torch.tensor(self.part.codec.numels(self.x.numel()), dtype=torch.int64, device="cpu"),
            self.scales.device,
        )


class _Bucket(BucketAggregator):
    def __init__(self, aggregator: "MajorityVote", bucket: Bucket) -> None:
        super().__init__(aggregator, bucket)
        self.codec = ScaledSign().fitted(shapes_of(bucket))

    def prepare(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> _Draft:
        return _Draft(self, x, key, self.codec.scales(x), abstains=False)

    def blank(self, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float) -> _Draft:
        x = torch.full((self.numel,), value, device=device, dtype=torch.float32)
        return _Draft(self, x, key, self.codec.scales(x), abstains=value == 0.0)


class MajorityVote(Aggregator):
    """Votes on the sign of every element, and scales each tensor by the mean over ranks of ``‖x‖₁ / n``.

    An element with as many votes for each sign becomes 0. A rank is deemed to have sent its own signs at that scale.
    The signs of the minority are lost, with or without an error memory, as in the paper. ceil(log2(2N + 1)) bits per
    element for N ranks, and 4 bytes per tensor.
    """

    name = "majority"
    source = "Bernstein et al. 2018, signSGD, algorithm 3; scale: Karimireddy et al. 2019"
    conserves = False
    sync_free = True

    def open(self, bucket: Bucket) -> _Bucket:
        return _Bucket(self, bucket)

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        n = sum(tensors.numels)
        return 4 * words(n, ranks) + 4 * len(ScaledSign().fitted(shapes_of(tensors)).numels(n))
