"""The DDP communication hook: registered once, all change happens behind it.

PyTorch wants a plain function with these parameter names and real annotations, so this module must not postpone
annotations. A hook can never be taken off a DDP module again; after the agent closes it therefore stays as a plain
all-reduce that first hands out what is still owed.
"""

import math
import weakref
from typing import Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.collectives import AllReduce
from gravac.kernels import energy
from gravac.memories import Bucket, Memory, NoMemory, ResidualMemory, convert
from gravac_agent.errors import SetupError
from gravac_agent.exchange import fit, kinds


class Taker(Protocol):
    """Whoever handles buckets while the agent is open."""

    def submit(
        self, bucket: Bucket, buffer: torch.Tensor, last: bool
    ) -> torch.futures.Future[torch.Tensor]: ...


class HookSlot:
    """State of the hook on one module: who takes its buckets now."""

    def __init__(self, module: DistributedDataParallel) -> None:
        self.names = {id(parameter): name for name, parameter in module.module.named_parameters()}
        self.dense = AllReduce(module.process_group)
        self.taker: Taker | None = None
        self.leftover: Memory = NoMemory()

    def bucket(self, bucket: dist.GradBucket) -> Bucket:  # type: ignore[name-defined]
        """Which parameters this flat gradient is made of."""
        parameters = bucket.parameters()
        shapes = tuple(kinds.real_shape(parameter) for parameter in parameters)
        names = tuple(self.names[id(parameter)] for parameter in parameters)
        return Bucket(bucket.index(), names, tuple(math.prod(shape) for shape in shapes), shapes)

    def plain(self, bucket: Bucket, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Dense mean without an agent; what a closed agent still owes is sent with it, so nothing is lost."""
        if not buffer.is_sparse and self.leftover.has_residual(bucket):
            p = self.leftover.compensate(bucket, buffer, whole=True)
            most, sq = fit.limit(buffer.dtype, self.dense.world_size), energy(p)
            part = fit.clamped(p, sq, most) if math.isfinite(sq) else None
            fit.send_whole(self.leftover, bucket, p, part, buffer.dtype)
            buffer.copy_(p if part is None else part)
            self.leftover.commit()
        exchange = self.dense.reduce_in_place(buffer)
        return exchange.work.get_future().then(lambda _: buffer)


def leftover(memory: Memory) -> Memory:
    """What a closed agent still owes; only that: a momentum it kept ends with it."""
    return convert(memory, ResidualMemory()) if memory.transforms else memory


def gravac_hook(
    state: HookSlot,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Called by DDP for each bucket, in bucket order, on the thread that runs backward."""
    described = state.bucket(bucket)
    if state.taker is None:
        return state.plain(described, bucket.buffer())
    return state.taker.submit(described, bucket.buffer(), bucket.is_last())


_SLOTS: "weakref.WeakKeyDictionary[DistributedDataParallel, HookSlot]" = weakref.WeakKeyDictionary()


def attach(module: DistributedDataParallel) -> HookSlot:
    """Register the hook on ``module``, or find it there from an earlier, closed agent.

    Raises SetupError when the module has another hook already.
    """
    slot = _SLOTS.get(module)
    if slot is None:
        slot = HookSlot(module)
        try:
            module.register_comm_hook(slot, gravac_hook)
        except RuntimeError as error:
            raise SetupError(
                "this DDP module already has a communication hook, and PyTorch allows only one: "
                f"remove the other register_comm_hook call ({error})"
            ) from error
        _SLOTS[module] = slot
    if slot.taker is not None:
        raise SetupError("this DDP module is wrapped by another Agent already; leave that `with` block first")
    return slot
