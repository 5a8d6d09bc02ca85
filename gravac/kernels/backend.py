"""The backend of the kernels: compiled by numba for the host, by Triton for GPUs, or plain torch, with equal results.

Set by ``GRAVAC_KERNELS`` in the environment, or by ``use``: ``auto`` (compiled wherever that works), ``cpu`` (the same,
but numba must work), ``cuda`` (the same, but Triton must work) or ``reference`` (plain torch everywhere).
"""

import importlib
import logging
import os
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from gravac.kernels import scalars

Choice = Literal["auto", "cpu", "cuda", "reference"]
log = logging.getLogger("gravac.kernels")
_KERNELS = ("tally", "top", "sifting", "linalg", "bits", "rounding", "draws", "digits", "nearest", "huffman")
"""Modules of ``gravac.kernels.cpu`` with compiled functions."""
_GPU_KERNELS = ("tally", "top", "linalg", "bits", "rounding", "draws")
"""Modules of ``gravac.kernels.cuda`` with compiled functions."""
_GPUS = ("cuda",)
"""Device types whose tensors Triton's kernels take."""
_filling: Callable[[], object] | None = None
_chosen: Choice | None = None
_active: Literal["cpu", "reference"] | None = None
_gpu: bool | None = None
_lacking = ""


def use(choice: Choice) -> None:
    """Chooses the backend of this process; what is named explicitly is loaded at once.

    Args:
        choice: ``auto``, ``cpu``, ``cuda`` or ``reference``.

    Raises:
        ValueError: The name is unknown.
        ImportError: ``cpu`` or ``cuda`` was asked for, and numba or Triton is missing or does not work.
    """
    global _chosen, _active, _gpu
    if choice not in get_args(Choice):
        raise ValueError(f"GRAVAC_KERNELS={choice!r} must be one of {', '.join(get_args(Choice))}")
    _chosen, _active, _gpu = choice, None, None
    if choice == "cpu":
        active()
    if choice == "cuda":
        _gpu = _load("cuda")


def active() -> Literal["cpu", "reference"]:
    """Returns the backend for the host's memory; decides and loads it on the first call. Raises as ``use`` does."""
    global _active
    if _active is None:
        _decide()
        if _active is None:
            _active = "cpu" if _chosen != "reference" and _load("cpu") else "reference"
    return _active


def lacking() -> str:
    """Returns why the compiled kernels for the host could not be loaded; empty when they could, or were not tried."""
    return _lacking


def compile_by(fill: Callable[[], object]) -> None:
    """Sets what is called, once, when the cache on disk lacks a kernel. It may fill the cache in another process.

    A compiler stays in the memory of the process that used it.
    """
    global _filling
    _filling = fill


def fill_cache() -> None:
    """Calls what ``compile_by`` set, the first time."""
    global _filling
    fill, _filling = _filling, None
    if fill is not None:
        fill()


def warm() -> Literal["cpu", "reference"]:
    """Loads, and where needed compiles, all kernels now instead of in the first step; call it before training.

    Compiled code is cached on disk: numba's beside the package, else in the user's cache folder, else nowhere (then
    each process compiles again; ``NUMBA_CACHE_DIR`` names another folder); Triton's in ``TRITON_CACHE_DIR``. Kernels
    for GPUs are compiled in processes that have used one, for the current one.

    Returns:
        The backend for the host's memory.
    """
    if torch.cuda.is_initialized() and gpu_kernels(torch.device("cuda")):
        from gravac.kernels.cuda.warm import run_all

        run_all(torch.device("cuda", torch.cuda.current_device()))
    return active()


def compiled(*tensors: Tensor) -> bool:
    """Returns whether the compiled host kernels take these tensors: on the host, and contiguous."""
    if active() != "cpu":
        return False
    for tensor in tensors:  # noqa: SIM110  # a generator takes twice as long
        if scalars.on_device(tensor) or not tensor.is_contiguous():
            return False
    return True


def on_gpu(*tensors: Tensor) -> bool:
    """Returns whether Triton's kernels take these tensors: on one GPU, and contiguous."""
    device = tensors[0].device
    return (
        device.type in _GPUS
        and all(tensor.device == device and tensor.is_contiguous() for tensor in tensors)
        and gpu_kernels(device)
    )


def gpu_kernels(device: torch.device) -> bool:
    """Returns whether Triton's kernels run on that device; loads them on the first call."""
    global _gpu
    if device.type not in _GPUS:
        return False
    if _gpu is None:
        _decide()
        if _gpu is None:
            _gpu = _chosen != "reference" and _load("cuda")
    return _gpu


def _decide() -> None:
    if _chosen is None:
        use(os.environ.get("GRAVAC_KERNELS", "auto"))  # type: ignore[arg-type]  # checked there


def _load(name: Literal["cpu", "cuda"]) -> bool:
    """Loads compiled kernels. If that fails, training goes on without them, unless they were asked for by name."""
    global _lacking
    compiler = "numba" if name == "cpu" else "Triton"
    try:
        for module in _KERNELS if name == "cpu" else _GPU_KERNELS:
            importlib.import_module(f"gravac.kernels.{name}.{module}")
    except Exception as error:
        if _chosen == name:
            raise ImportError(
                f"GRAVAC_KERNELS={name!r} needs a working {compiler}: pip install 'gravac[{name}]' ({error})"
            ) from error
        # Every rank runs this; the agent's rank 0 reports it, with the fix.
        log.info(
            "compiled kernels (%s) not available, using plain torch, which is several times slower: %s",
            compiler,
            error,
        )
        if name == "cpu":
            _lacking = str(error)
        return False
    return True
