"""How the GPU kernels are compiled and launched."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_constants: dict[Any, tuple[str, ...]] = {}
"""Names of a kernel's compile-time constants, in the order of its parameters; they come last."""
_compiled: dict[tuple[Any, ...], Any] = {}
"""What Triton has compiled, by all that makes a variant. Its own search for it takes the host longer than a launch."""


def jit(*wide: str) -> Callable[[F], F]:
    """Compiles a kernel, or a function that kernels call, when it is first launched for such types (``kernels.warm``).

    Args:
        *wide: Tensors that are read or written in runs, 16 bytes at a time where they begin at a multiple of that. This
            compiles two variants for each. Nothing else about the arguments makes a variant, or the step with a new
            size would wait for a compiler.
    """

    def make(function: F) -> F:
        parameters = inspect.signature(function).parameters.items()
        plain = [name for name, it in parameters if name not in wide and it.annotation is not tl.constexpr]
        made = triton.jit(function, do_not_specialize=plain, do_not_specialize_on_alignment=plain)
        _constants[function] = tuple(name for name, it in parameters if it.annotation is tl.constexpr)
        return cast(F, made)

    return make


def launch(
    kernel: Callable[..., Any], programs: int, *arguments: Tensor | float, warps: int = 4, **constants: Any
) -> "Again | None":
    """Starts programs on the device and current stream of the first argument, and returns at once.

    Sums and products are rounded one by one, never fused, so that results equal those of plain torch.

    Args:
        kernel: Compiled by ``jit``.
        programs: How many.
        *arguments: Positional arguments; the first is a tensor.
        warps: Warps per program.
        **constants: Compile-time constants.

    Returns:
        What launches it again; None where Triton interprets.
    """
    if not programs:
        return None
    device = arguments[0].device  # type: ignore[union-attr]  # a tensor always comes first
    # Our threads start with the first GPU as their current one, wherever the model lies.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        function = kernel.fn  # type: ignore[attr-defined]
        fixed = tuple(constants[name] for name in _constants[function])
        variant = function, device.index, warps, fixed, *map(_kind, arguments)
        compiled = _compiled.get(variant)
        if compiled is not None:
            compiled[programs, 1, 1](*arguments, *fixed)
            return Again(compiled, programs, device, (*arguments, *fixed))
        compiled = kernel[(programs,)](*arguments, num_warps=warps, enable_fp_fusion=False, **constants)  # type: ignore[index]
        if compiled is not None:  # nothing is compiled where Triton interprets
            _compiled[variant] = compiled
            return Again(compiled, programs, device, (*arguments, *fixed))
    return None


class Again:
    """Launches a kernel again, without looking at what makes its variant: that takes the host longer than the launch.

    Args:
        compiled: What Triton has compiled.
        programs: How many.
        device: Device of the tensors.
        arguments: Arguments of the launch, with compile-time constants in order behind them.
    """

    def __init__(
        self, compiled: Any, programs: int, device: torch.device, arguments: tuple[Tensor | float, ...]
    ) -> None:
        self._run, self._device, self._arguments = compiled[programs, 1, 1], device, arguments

    def holding(self, first: int) -> "Again":
        """Forget the first arguments, which ``__call__`` is given."""
        self._arguments = self._arguments[first:]
        return self

    def __call__(self, *first: Tensor | float) -> None:
        """Launch with others for the first arguments, of the same type and alignment."""
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            self._run(*first, *self._arguments)
        else:
            with torch.cuda.device(self._device):
                self._run(*first, *self._arguments)


def _kind(value: Tensor | float) -> object:
    """Return what the compiler looks at of an argument: its type, of a tensor also whether it can be read in runs."""
    return (value.dtype, value.data_ptr() % 16 == 0) if isinstance(value, Tensor) else type(value)
