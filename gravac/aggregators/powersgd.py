"""PowerSGD: one step of power iteration per training step, in two all-reduces, starting from the last step's factor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators.base import Aggregator, BucketAggregator, shapes_of
from gravac.collectives import Communicator, Done, Exchange, ring_bytes
from gravac.compressors.base import Key, Payload
from gravac.compressors.dense import Dense
from gravac.compressors.lowrank.matrices import Group, MatrixLayout, geometry
from gravac.kernels import Scalar, SelectionHint, energy, finite_or_zero, placed
from gravac.memories.bucket import Bucket
from gravac.offers import Offer
from gravac.transaction import Transaction

_DENSE = Dense()


@dataclass(slots=True)
class _InFlight(Exchange):
    plan: MatrixLayout
    left: list[Tensor]  # per group (count, rows, rank), the same on all ranks
    right: list[Tensor]  # per group (count, columns, rank), summed over ranks once the work is done
    dense: Tensor

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        for group, left, right in zip(self.plan.groups, self.left, self.right, strict=True):
            group.add(left @ right.mT, out, 1.0)
        self.plan.add_dense(self.dense, out, 1.0)

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), *self.left, *self.right, self.dense)


@dataclass(frozen=True, slots=True)
class _FirstRound:
    """What both kept energy and sending begin with: per group, Q of the last step, M, and M times orthonormal Q."""

    plan: MatrixLayout
    starts: list[Tensor]
    matrices: list[Tensor]
    first: list[Tensor]


@dataclass(slots=True)
class _Draft:
    part: "_Bucket"
    x: Tensor
    key: Key
    first_round: dict[float, _FirstRound] = field(default_factory=dict)
    own: dict[float, Scalar] = field(default_factory=dict)

    def kept_energy(self, cf: float) -> Scalar:
        return self.own_energy(cf) * self.part.shortfall.expected(cf)

    def own_energy(self, cf: float) -> Scalar:
        """Return the energy of this rank's matrices in its own column space. It is computed once per CF."""
        if cf not in self.own:
            first_round = self.begin(cf)
            kept: Scalar = (
                energy(first_round.plan.gather_dense(self.x)) if first_round.plan.dense_numel else 0.0
            )
            for matrices, first in zip(first_round.matrices, first_round.first, strict=True):
                kept += energy((_orthonormal(first).mT @ matrices).flatten())
            self.own[cf] = kept
        return self.own[cf]

    def begin(self, cf: float) -> _FirstRound:
        """Compute the first round once per CF."""
        if cf not in self.first_round:
            aggregator, names = self.part.aggregator, self.part.bucket.names
            plan, factors = aggregator.plan(self.part.bucket, cf), aggregator.factors
            matrices = [group.stack(self.x) for group in plan.groups]
            starts = [
                torch.stack(
                    [factors.start(names[at], group, self.key, self.x.device) for at in group.numbers]
                )
                for group in plan.groups
            ]
            first = [matrix @ _orthonormal(start) for matrix, start in zip(matrices, starts, strict=True)]
            self.first_round[cf] = _FirstRound(plan, starts, matrices, first)
        return self.first_round[cf]

    def send(self, cf: float) -> Exchange:
        x, aggregator, first_round = self.x, self.part.aggregator, self.begin(cf)
        communicator, share = aggregator.communicator, aggregator.share
        plan, matrices, first = first_round.plan, first_round.matrices, first_round.first
        own_dense = plan.gather_dense(x).float()
        message = torch.cat([*(each.flatten() for each in first), own_dense]) * share
        communicator.sum(message).wait()  # the second round needs P of all ranks
        *flat, dense = message.split([*(each.numel() for each in first), plan.dense_numel])
        left = [_orthonormal(one.view_as(each)) for one, each in zip(flat, first, strict=True)]
        own = [matrix.mT @ p for matrix, p in zip(matrices, left, strict=True)]

        # Energy of this rank's matrices in the column space that is used.
        through = sum((energy(q.flatten()) for q in own), energy(own_dense) if own_dense.numel() else 0.0)
        sent = torch.zeros(x.numel(), device=x.device, dtype=torch.float32)
        # This rank counts its own P (Mᵀ P)ᵀ as sent. The mean of those over ranks is what comes out.
        for group, p, q in zip(plan.groups, left, own, strict=True):
            group.add(finite_or_zero(p) @ finite_or_zero(q).mT, sent, 1.0)
        plan.add_dense(own_dense, sent, 1.0)

        second = torch.cat([dense[:0], *(q.flatten() for q in own)]) * share
        work = communicator.sum(second) if own else Done()
        pieces = second.split([q.numel() for q in own]) if own else ()
        right = [piece.view_as(q) for piece, q in zip(pieces, own, strict=True)]
        for group, start, q in zip(plan.groups, first_round.starts, right, strict=True):
            aggregator.factors.drafts |= {
                self.part.bucket.names[number]: _FactorDraft(start[at], q[at])
                for at, number in enumerate(group.numbers)
            }
        payload_bytes = message.nbytes + second.nbytes
        sent_bytes = ring_bytes(payload_bytes, communicator.size)
        payload = Payload((sent,), None, x.numel(), cf, self.key)
        if communicator.size > 1:
            self.part.record(cf, self.own_energy(cf), through)
        return _InFlight(work, sent_bytes, payload_bytes, _DENSE, payload, plan, left, right, dense)


class _Bucket(BucketAggregator):
    aggregator: "PowerSGD"

    def prepare(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> _Draft:
        return _Draft(self, x, key)


class _FactorDraft(NamedTuple):
    """A matrix's factor before and after a step. A skipped step leaves the former with the width that the step used, so
    that widths never depend on anything read from a device."""

    start: Tensor
    q: Tensor


class _Factors(Transaction):
    """Q of the last step, by parameter name, equal on all ranks."""

    name = "powersgd"

    def __init__(self) -> None:
        self._right: dict[str, Tensor] = {}
        self.drafts: dict[str, _FactorDraft] = {}

    def start(self, name: str, group: Group, key: Key, device: torch.device) -> Tensor:
        """Return the start factor of a matrix, shape ``(columns, rank)``."""
        known = self._right.get(name)
        if known is not None and known.shape[0] != group.columns:
            known = None
        if known is not None and known.shape[1] >= group.rank:
            return known[:, : group.rank].to(device)
        # On the CPU, from what all ranks know: the start must be equal on all of them, whatever their devices.
        seed = sha256(f"{key.shared_seed()}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "big"))
        fresh = placed(
            torch.randn(group.columns, group.rank, generator=generator, dtype=torch.float32, device="cpu"),
            device,
        )
        return fresh if known is None else torch.cat((known.to(device), fresh[:, known.shape[1] :]), 1)

    def commit(self) -> None:
        # The next step starts from these factors, so non-finite ones would never go away.
        for name, draft in self.drafts.items():
            self._right[name] = (draft.q if bool(draft.q.isfinite().all()) else draft.start).clone()
        self.drafts.clear()

    def rollback(self) -> None:
        self._right |= {name: draft.start.clone() for name, draft in self.drafts.items()}
        self.drafts.clear()

    def commit_where(self, counts: Tensor) -> None:
        for name, draft in self.drafts.items():
            self._right[name] = torch.where(counts & draft.q.isfinite().all(), draft.q, draft.start)
        self.drafts.clear()

    def state_dict(self) -> dict[str, Tensor]:
        return {name: q.clone() for name, q in self._right.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, q in state.items():
            if not isinstance(q, Tensor) or q.dim() != 2 or not q.is_floating_point():
                raise ValueError(f"powersgd: factor of {name!r} must be a 2-D float tensor, got {q!r:.80}")
        self._right = {name: q.detach().float().clone() for name, q in state.items()}
        self.drafts.clear()


class PowerSGD(Aggregator):
    """Sends two low-rank factors per matrix, improved by one power iteration per step.

    For a matrix M of each rank: ``P = mean M Q``, made orthonormal; ``Q = mean Mᵀ P``; the mean is ``P Qᵀ``. Rank r of
    an a×b matrix takes r(a + b) values, in two all-reduces for the whole bucket, with equal shapes as one batch.
    Vectors, and matrices that would not shrink by ``saving``, are sent as they are. ``rank``: a fixed rank instead of
    the one that the CF asks for.

    A rank is deemed to have sent ``P (Mᵀ P)ᵀ``: that leaves the smallest residual, and the mean over ranks is exactly
    what came out. Q stays for the next step, by parameter name, equal on all ranks. The first round is waited for in
    ``send``, never in a future's callback, so any number of buckets may be in flight.
    """

    name = "powersgd"
    source = "Vogels et al. 2019, PowerSGD, algorithm 1, with warm start"
    sync_free = True
    offer = Offer(sgd={20.0: (0.597, 0.694, 0.936)}, adam={20.0: (0.350, 0.648, 0.750)})

    def __init__(
        self, group: dist.ProcessGroup | Communicator, *, rank: int | None = None, saving: float = 2.0
    ) -> None:
        self.factors = _Factors()
        super().__init__(group, self.factors)
        if rank is not None and rank < 1:
            raise ValueError(f"powersgd: rank={rank} must be at least 1")
        if not saving >= 1:
            raise ValueError(
                f"powersgd: saving={saving} must be at least 1, how much smaller a matrix must get"
            )
        self.rank, self.saving = rank, saving

    def open(self, bucket: Bucket) -> _Bucket:
        return _Bucket(self, bucket)

    def plan(self, tensors: Bucket, cf: float) -> MatrixLayout:
        """Return how the tensors are sent at a CF."""
        return geometry(shapes_of(tensors), cf, self.saving, self.rank)

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        plan = self.plan(tensors, cf)
        return 4 * (sum(group.factor_numel for group in plan.groups) + plan.dense_numel)


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis that contains the column space of each matrix, shape ``(count, rows, rank)``."""
    # Scaled first, because the squares of tiny gradients would vanish.
    top = columns.abs().amax((1, 2), keepdim=True)
    basis: Tensor = torch.linalg.qr(columns / torch.where(top > 0, top, 1.0)).Q
    return basis
