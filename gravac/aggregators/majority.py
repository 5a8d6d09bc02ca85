"""signSGD with majority vote: one sign a rank and element, and the sign most ranks have."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.aggregators.base import Aggregator, Flight, Tensors
from gravac.aggregators.ternary import pack_sums, unpack_sums, words
from gravac.collectives import Communicator, Work, ring_bytes
from gravac.compressors.base import Key, Payload
from gravac.compressors.scaledsign import ScaledSign
from gravac.kernels import Known, pack


@dataclass(slots=True)
class _Flight:
    work: Work
    sent_bytes: int
    payload_bytes: int
    codec: ScaledSign
    payload: Payload
    votes: Tensor
    scale: Tensor
    ranks: int

    def mean_into(self, out: Tensor) -> None:
        total = unpack_sums(self.votes, out.numel(), self.ranks) - self.ranks
        out.copy_(total.sign() * self.scale)


@dataclass(slots=True)
class _Draft:
    communicator: Communicator
    x: Tensor
    key: Key
    dtype: torch.dtype
    abstains: bool

    def kept_energy(self, cf: float) -> float:
        return _CODEC.kept_energy(_CODEC.compress(self.x, cf, self.key, self.dtype), self.x)

    def send(self, cf: float) -> Flight:
        n, ranks = self.x.numel(), self.communicator.size
        positive = self.x >= 0
        scale = self.x.abs().mean(dtype=torch.float64).float().view(1) / ranks
        self.communicator.sum(scale).wait()
        codes = torch.ones_like(positive, dtype=torch.int32) if self.abstains else 2 * positive.int()
        votes = pack_sums(codes, ranks)
        work = self.communicator.sum(votes)
        own = torch.zeros_like(scale) if self.abstains else scale
        payload = Payload((own, pack(positive, 1)), None, n, cf, self.key)
        payload_bytes = votes.nbytes + scale.nbytes
        sent_bytes = ring_bytes(payload_bytes, ranks)
        return _Flight(work, sent_bytes, payload_bytes, _CODEC, payload, votes, scale, ranks)


_CODEC = ScaledSign()


class MajorityVote(Aggregator):
    """The sign that most ranks have, 0 where they are equally many, times the mean over ranks of ``‖x‖₁ / n``.

    A rank is deemed to have sent its own signs at that scale. The minority's are nowhere: with or without error memory
    they are lost, as in the paper. ceil(log2(2N + 1)) bits an element for N ranks, and 4 bytes.
    """

    name = "majority"
    source = "Bernstein et al. 2018, signSGD, algorithm 3; scale: Karimireddy et al. 2019"
    conserves = False

    def prepare(
        self,
        tensors: Tensors,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        counted: Known | None = None,
    ) -> _Draft:
        return _Draft(self.communicator, x, key, dtype, abstains=False)

    def blank(
        self, tensors: Tensors, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> _Draft:
        x = torch.full((sum(tensors.numels),), value, device=device)
        return _Draft(self.communicator, x, key, dtype, abstains=value == 0.0)

    def wire_bytes(self, tensors: Tensors, cf: float, dtype: torch.dtype, ranks: int) -> int:
        return 4 * words(sum(tensors.numels), ranks) + 4
