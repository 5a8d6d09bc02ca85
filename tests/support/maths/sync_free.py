"""Finds out whether a computation reads a device: on the host's tensors, treated as a device's, and on meta tensors.

A tensor that holds anything computed from the tensors given as the device's is one of the device, too. Reading its
elements raises ``ReadsTheDevice``, and so does an operation whose result has a size that only the device knows.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gravac.kernels import treated_as_device

aten = torch.ops.aten
_READS = {
    *(aten._local_scalar_dense, aten.item, aten.is_nonzero, aten.equal, aten.allclose),
    *(aten.nonzero, aten.nonzero_numpy, aten.argwhere, aten.masked_select, aten.bincount, aten.histc),
    *(aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.unique_dim_consecutive),
    *(
        aten.linalg_svd,
        aten._linalg_svd,
        aten.linalg_eigh,
        aten._linalg_eigh,
    ),  # wait on CUDA, says their page
}
"""Operations that read elements, or whose result's size depends on them."""
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
_METHODS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.cpu, Tensor.item, Tensor.__bool__}


class ReadsTheDevice(AssertionError):
    """Something read a tensor of the device."""


class _Tainted:
    """The storages of the device, shared by the modes of all threads."""

    def __init__(self) -> None:
        self._lock, self._kept = threading.Lock(), dict[int, Tensor]()

    def add(self, x: Tensor) -> None:
        with self._lock:  # kept, so that no other storage gets its number
            self._kept.setdefault(x.untyped_storage()._cdata, x)

    def has(self, x: Tensor) -> bool:
        return x.is_meta or x.untyped_storage()._cdata in self._kept


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor)]


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and importing Dynamo takes seconds

    def __init__(self, tainted: _Tainted) -> None:
        super().__init__()
        self._tainted = tainted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet, mine = (
            func.overloadpacket,
            [tensor for tensor in _tensors((args, kwargs)) if self._tainted.has(tensor)],
        )
        if mine:
            self._check(packet, args, kwargs)
        result = func(*args, **kwargs)
        if mine:
            for one in _tensors((result, args[0] if func._schema.is_mutable else ())):
                self._tainted.add(one)
        return result

    def _check(self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if packet in _READS:
            raise ReadsTheDevice(f"{packet} reads a tensor of the device")
        if packet in _INDEXING and any(
            tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1])
        ):
            raise ReadsTheDevice(f"{packet} with a mask: the result's size is only known to the device")
        if packet is aten.repeat_interleave and isinstance(args[-1], Tensor) and "output_size" not in kwargs:
            raise ReadsTheDevice("repeat_interleave without output_size")
        if packet in (aten._to_copy, aten.copy_) and not kwargs.get("non_blocking", args[-1] is True):
            ends = {tensor.device.type for tensor in _tensors((args, kwargs))} | {
                str(kwargs["device"]).partition(":")[0] for _ in range(kwargs.get("device") is not None)
            }
            if len(ends) > 1:
                raise ReadsTheDevice(f"{packet} waits for a copy between {' and '.join(sorted(ends))}")


class _Calls(TorchFunctionMode):
    """What no operation shows: elements copied into Python objects, and tensors made of these on a device."""

    def __init__(self, tainted: _Tainted) -> None:
        super().__init__()
        self._tainted = tainted

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METHODS and self._tainted.has(args[0]):
            raise ReadsTheDevice(f"Tensor.{func.__name__} reads a tensor of the device")
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor):
            if any(self._tainted.has(tensor) for tensor in _tensors(args[0])):
                raise ReadsTheDevice("torch.tensor reads the tensors that it is given")
            if str(kwargs.get("device")) == "meta":
                raise ReadsTheDevice("a tensor of Python numbers on a device waits for the copy")
        if func is Tensor.to and isinstance(args[0], Tensor) and not args[0].is_meta:
            target = kwargs.get("device", args[1] if len(args) > 1 else None)
            if str(target) == "meta" and not kwargs.get("non_blocking"):
                raise ReadsTheDevice("Tensor.to waits for the copy to the device")
        return func(*args, **kwargs)


class Watch:
    """Watches computations on the device's tensors. Each thread that computes enters ``watching``."""

    def __init__(self) -> None:
        self._tainted = _Tainted()

    def device(self, x: Tensor) -> Tensor:
        """``x`` as a tensor of the device: the same elements."""
        self._tainted.add(x)
        return x

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Raises ``ReadsTheDevice`` where anything of the device is read."""
        with treated_as_device(), _Calls(self._tainted), _Operations(self._tainted):
            yield


def reads(compute: Callable[[Tensor], object], x: Tensor) -> bool:
    """Whether ``compute(x)`` reads the device that ``x`` is on."""
    watch = Watch()
    try:
        with watch.watching():
            compute(watch.device(x.clone()))
    except ReadsTheDevice:
        return True
    return False
