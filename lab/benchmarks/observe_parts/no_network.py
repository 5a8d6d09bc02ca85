"""Replaces the network by none: collectives of torch end at once, on all process groups and for all callers.

The kernels of torch's operators are replaced, below ``torch.distributed``, so that DDP's reducer, FSDP, DTensor and
messages all do the same work as before, but for the transfer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup

create_work: Callable[[Any], Any] = torch._C._distributed_c10d._create_work_from_future  # type: ignore[attr-defined]


@contextmanager
def no_network() -> Iterator[None]:
    """Let all collectives return at once, with the rank's own numbers instead of the others'."""
    library = torch.library.Library("c10d", "IMPL")
    try:
        for name, kernel in KERNELS.items():
            library.impl(name, kernel, "CPU", allow_override=True)
        yield
    finally:
        library._destroy()


def _done(result: list[Tensor]) -> Any:
    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(result)
    return create_work(future).boxed()


def _in_place(tensors: list[Tensor], *_: Any) -> Any:
    return tensors, _done(tensors)


def _message(tensors: list[Tensor], *_: Any) -> Any:
    return _done(tensors)


def _barrier(tensor: Tensor, *_: Any) -> Any:
    return _done([tensor])


@torch.no_grad()
def _all_gather_base(output: Tensor, given: Tensor, *_: Any) -> Any:
    for copy in output.view(-1, given.numel()):
        if copy.data_ptr() != given.data_ptr():  # it may be a part of the output
            copy.copy_(given.view(-1))
    return output, _done([output])


@torch.no_grad()
def _all_gather(outputs: list[list[Tensor]], given: list[Tensor], *_: Any) -> Any:
    for copies, tensor in zip(outputs, given, strict=True):
        for copy in copies:
            copy.copy_(tensor)
    return outputs, _done([copy for copies in outputs for copy in copies])


@torch.no_grad()
def _reduce_scatter_base(output: Tensor, given: Tensor, group: Any, *_: Any) -> Any:
    output.view(-1).copy_(given.view(-1, output.numel())[dist.get_rank(ProcessGroup.unbox(group))])
    return output, _done([output])


KERNELS: dict[str, Callable[..., Any]] = {
    "allreduce_": _in_place,
    "broadcast_": _in_place,
    "_allgather_base_": _all_gather_base,
    "allgather_": _all_gather,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "send": _message,
    "recv_": _message,
    "barrier": _barrier,
}
