"""The DDP communication hook. It is registered once, and everything that changes is behind it.

PyTorch wants a plain function with these parameter names and real annotations, so this module must not postpone
annotations. A hook can never be removed from a DDP module. So after the agent closes, it stays as a plain all-reduce,
which sends the remaining residual with the next gradients. PyTorch does not copy the hook with a module: the copy keeps
a state that does nothing.
"""

import math
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.collectives import AllReduce, Transfer
from gravac.memories import Bucket, Memory, NoMemory, ResidualMemory, convert
from gravac_agent.errors import SetupError
from gravac_agent.exchange.compensation import unused_elements
from gravac_agent.exchange.overflow import send_whole
from gravac_agent.exchange.step import SubmittedBucket


class BucketHandler(Protocol):
    """Handles buckets while the agent is open."""

    def submit(self, bucket: Bucket, buffer: torch.Tensor, last: bool) -> torch.futures.Future[torch.Tensor]:
        """Take one bucket, and return a future of its mean over ranks, which is written into ``buffer``."""


class HookState:
    """The state of the hook on one module.

    Args:
        module: The module; None for a copy of one, which has no agent.

    Attributes:
        handler: Takes the buckets; None while no agent is open.
        leftover: The residual of a closed agent.
        reserved: Whether the hook makes the module's agent itself.
    """

    reserved = False

    def __init__(self, module: DistributedDataParallel | None = None) -> None:
        self._group: dist.ProcessGroup | None = None
        self.names: dict[int, str] = {}
        self.drops_unused = False
        self._buckets: list[tuple[tuple[int, ...], Bucket]] = []  # in order, with the ids of their parameters
        self.handler: BucketHandler | None = None
        self.leftover: Memory = NoMemory()
        if module is not None:
            self.belong_to(module)

    def __reduce__(self) -> tuple[Any, ...]:
        return HookState, ()  # torch copies and pickles it with the module

    def belong_to(self, module: DistributedDataParallel) -> None:
        """Become the state of this module, before the first bucket."""
        self._group = module.process_group
        self.names = {id(parameter): name for name, parameter in module.module.named_parameters()}
        self.drops_unused = drops_unused(module)

    @cached_property
    def dense(self) -> AllReduce:
        """DDP's own all-reduce, on the default group for a copy of a module."""
        group = self._group or dist.group.WORLD
        assert group is not None
        return AllReduce(group)

    def bucket(self, bucket: dist.GradBucket) -> Bucket:  # type: ignore[name-defined]
        """Return which parameters this flat gradient is made of. It is the same object until DDP regroups them."""
        number: int = bucket.index()
        parameters = bucket.parameters()
        ids = tuple(map(id, parameters))
        if number < len(self._buckets) and self._buckets[number][0] == ids:
            return self._buckets[number][1]
        shapes = tuple(real_shape(parameter) for parameter in parameters)
        try:
            names = tuple(self.names[one] for one in ids)
        except KeyError:
            raise SetupError(_OTHER) from None
        found = Bucket(number, names, tuple(math.prod(shape) for shape in shapes), shapes)
        self._buckets[number:] = [(ids, found)]  # DDP asks in order; those that follow are asked for again
        return found

    def take_over(self) -> None:
        """Do nothing: the hook is registered already."""

    def dense_on(self, group: dist.ProcessGroup) -> Callable[[SubmittedBucket], Transfer]:
        """Return what issues DDP's own all-reduce on ``group``, for the exchange thread."""
        dense = AllReduce(group)
        return lambda submitted: dense.reduce_in_place(submitted.buffer)

    def release(self, leftover: Memory) -> None:
        """Give the module back to plain DDP, which sends the residual with the next gradients."""
        self.handler, self.leftover = None, leftover

    def all_reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Return the dense mean of a module without an open agent. The residual of a closed one is sent with it."""
        buffer: torch.Tensor = bucket.buffer()
        if not isinstance(self.leftover, NoMemory):
            add_leftover(self.leftover, self.bucket(bucket), buffer, self.dense.world_size, self.drops_unused)
            if bucket.is_last() and not self.leftover.state_dict():
                self.leftover = NoMemory()
        transfer = self.dense.reduce_in_place(buffer)
        return transfer.work.get_future().then(lambda _: buffer)


def leftover(memory: Memory) -> Memory:
    """Return the residual of a closing agent, without the momentum that its memory may hold."""
    return convert(memory, ResidualMemory()) if memory.transforms else memory


def drops_unused(module: DistributedDataParallel) -> bool:
    """Return whether DDP drops the mean of a parameter that no rank used, and leaves its ``grad`` as it is."""
    return bool(module.find_unused_parameters or module.static_graph)


def unused_everywhere(module: DistributedDataParallel) -> Callable[[], frozenset[str]] | None:
    """Return a function that names the parameters no rank used in the last backward; None if DDP keeps all means."""
    if not drops_unused(module):
        return None
    names = {id(parameter): name for name, parameter in module.module.named_parameters()}
    order = [names[id(parameter)] for parameter in module._build_params_for_reducer()[0]]

    def names_of_unused() -> frozenset[str]:
        ranks = module.reducer._get_local_used_map().tolist()  # DDP has summed it over the ranks
        if len(ranks) != len(order):  # parameters were frozen between DDP and the agent
            return frozenset()
        return frozenset(name for name, used in zip(order, ranks, strict=True) if not used)

    return names_of_unused


def add_leftover(
    leftover: Memory, bucket: Bucket, gradient: torch.Tensor, ranks: int, drops_unused: bool = False
) -> None:
    """Add a closed agent's residual to a gradient that ``ranks`` ranks are about to average densely.

    ``drops_unused`` is what the function of that name returns.
    """
    if gradient.is_sparse:
        return
    part = leftover.open(bucket)
    if part.has_residual:
        unused = unused_elements(bucket, gradient) if drops_unused else None
        send_whole(part, gradient, ranks, unused)
        leftover.commit()


def gravac_hook(
    state: HookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Exchange one bucket. DDP calls it for each bucket in order, on the thread that runs backward."""
    if state.handler is None:
        return state.all_reduce(bucket)
    return state.handler.submit(state.bucket(bucket), bucket.buffer(), bucket.is_last())


_OTHER = "this hook is registered on another DDP module: call gravac.hook() once for each"
_TWICE = "this DDP module has gravac.hook, which makes an Agent itself: leave one of the two out"

# PyTorch gives no access to a registered hook, and a later agent on the same module must find its state again.
_STATES: "weakref.WeakKeyDictionary[DistributedDataParallel, HookState]" = weakref.WeakKeyDictionary()


def keep(module: DistributedDataParallel, state: HookState) -> None:
    """Keep the state of the hook that is registered on a module, for ``attach``."""
    _STATES[module] = state


def real_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a parameter's gradient in a bucket, where DDP has made complex numbers pairs of real ones."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def attach(module: DistributedDataParallel) -> HookState:
    """Register the hook on ``module``, or return that of an earlier, closed agent.

    Raises:
        SetupError: The module has another hook, or an open agent.
    """
    state = _STATES.get(module)
    if state is None:
        found = module._get_ddp_logging_data().get("comm_hook")
        if found == gravac_hook.__qualname__:
            raise SetupError(_TWICE)
        if found:
            raise SetupError(
                f"this DDP module already has a communication hook, {found!r}, and PyTorch allows only one: leave out "
                "what registers it, or pass enabled=False"
            )
        state = HookState(module)
        module.register_comm_hook(state, gravac_hook)
        keep(module, state)
    if state.reserved:
        raise SetupError(_TWICE)
    if state.handler is not None:
        raise SetupError("this DDP module is wrapped by another Agent already; leave that `with` block first")
    return state
