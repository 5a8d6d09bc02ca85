"""Where Triton's kernels run in tests: on the GPU if there is one, else in Triton's interpreter, on the host's memory.

For a process of its own that was started with ``TRITON_INTERPRET=1`` where there is no GPU: torch imports Triton as it
likes, and kernels are made for one or the other once and for all.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from gravac.kernels import backend
from tests.support.maths.backends import on, same

GPU = torch.cuda.is_available()
HERE = torch.device("cuda", 0) if GPU else torch.device("cpu")
Place = Callable[[Tensor], Tensor]
"""Brings a tensor to the device of the test."""
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = ["normal", "mixed", "wild"]
LARGE = (3_000_001,) if GPU else ()
"""Enough elements for many programs of the shipped sizes; too many for the interpreter."""
SMALL = {
    "tally": {"BLOCK": 128, "FOLDED": 4096, "BLOCKS_A_TABLE": 2},
    "top": {"ROWS": 4, "WORDS": 8},
    "linalg": {"INNER_BLOCK": 256, "SCATTER_BLOCK": 64},
    "bits": {"BLOCK": 64, "WORDS": 8},
    "draws": {"BLOCK": 128, "WORDS": 16},
    "rounding": {"BLOCK": 128, "TILE": 64},
    "adam": {"BLOCK": 64},
    "step_sums": {"SUM_BLOCK": 128, "SIGNS_AT_ONCE": 64, "ROWS_AT_ONCE": 2},
    "tiled": {"AT_ONCE": 64},
    "rounded": {"AT_ONCE": 1024},
}
"""Sizes with which a few hundred elements are the work of several programs, of more than fit one, and of less."""
SHIPPED: dict[str, dict[str, int]] = {}
"""The same as they are outside tests; filled by ``prepare``."""
T = TypeVar("T")


def prepare() -> None:
    """Loads the kernels; where they are interpreted, makes that fast enough."""
    if not GPU:
        backend._GPUS = ("cpu",)
        _quicken()
    with on("cuda"):
        for name, constants in SMALL.items():
            SHIPPED[name] = {constant: getattr(module(name), constant) for constant in constants}


def module(name: str) -> Any:
    return importlib.import_module(f"gravac.kernels.cuda.{name}")


def alike(function: Callable[[Place], T]) -> T:
    """The result in plain torch, equal to the bit to that of Triton's kernels. ``function`` is given what brings its
    tensors (copies of them) to the device of the test."""
    mine = triton(function)
    with on("reference"):
        theirs = function(Tensor.clone)
    same(mine, theirs)
    return theirs


def triton(function: Callable[[Place], T]) -> T:
    """The result of Triton's kernels, on the host."""
    with on("cuda"):
        return _home(function(lambda tensor: tensor.clone().to(HERE)))


def _home(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_home(item) for item in result)
    return result.cpu() if isinstance(result, Tensor) else result


def _quicken() -> None:
    """The interpreter replaces all of ``triton.language`` at each call of a function, and checks each sum for overflow.
    Once is enough, as nothing else uses Triton here, and ours are meant to wrap around."""
    from triton.runtime import interpreter

    replace, replaced = interpreter._patch_lang, set[int]()

    class Kept:
        def restore(self) -> None:
            pass

    def once(function: Any) -> Kept:
        if id(function.__globals__) not in replaced:
            replaced.add(id(function.__globals__))
            replace(function)
        return Kept()

    interpreter._patch_lang = once
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
