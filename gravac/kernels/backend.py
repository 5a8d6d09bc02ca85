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
"""Types of the devices on which Triton's kernels run."""
_filling: Callable[[], object] | None = None
_chosen: Choice | None = None
_active: Literal["cpu", "reference"] | None = None
_gpu: bool | None = None
_lacking = ""


def use(choice: Choice) -> None:
    """Choose the backend of this process. A backend that is named explicitly is loaded at once.

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
    """Return the backend for the host's memory. The first call decides and loads it. Raises as ``use`` does."""
    global _active
    if _active is None:
        _decide()
        if _active is None:
            _active = "cpu" if _chosen != "reference" and _load("cpu") else "reference"
    return _active


def lacking() -> str:
    """Return why the compiled kernels for the host cannot be loaded; empty if they can, or were not tried."""
    return _lacking


def compile_by(fill: Callable[[], object]) -> None:
    """Set a function that is called once, when the cache on disk lacks a kernel.

    It may fill the cache in another process: a compiler stays in the memory of the process that used it.
    """
    global _filling
    _filling = fill


def fill_cache() -> None:
    """Call the function that ``compile_by`` set, the first time."""
    global _filling
    fill, _filling = _filling, None
    if fill is not None:
        fill()


def warm() -> Literal["cpu", "reference"]:
    """Load all kernels, and compile them if needed. Call it before training, so that the first step does not wait.

    Compiled code is cached on disk. numba's is beside the package, or else in the user's cache folder; if neither can
    be written, each process compiles again, unless ``NUMBA_CACHE_DIR`` names a folder. Triton's is in
    ``TRITON_CACHE_DIR``. Kernels for a GPU are compiled only in a process that has used one, for the current one.

    Returns:
        The backend for the host's memory.
    """
    if torch.cuda.is_initialized() and gpu_kernels(torch.device("cuda")):
        from gravac.kernels.cuda.warm import run_all

        run_all(torch.device("cuda", torch.cuda.current_device()))
    return active()


def compiled(*tensors: Tensor) -> bool:
    """Return whether the compiled host kernels take these tensors: on the host, and contiguous."""
    if active() != "cpu":
        return False
    for tensor in tensors:  # noqa: SIM110  # a generator takes twice as long
        if scalars.on_device(tensor) or not tensor.is_contiguous():
            return False
    return True


def on_gpu(*tensors: Tensor) -> bool:
    """Return whether Triton's kernels take these tensors: on one GPU, and contiguous."""
    device = tensors[0].device
    return (
        device.type in _GPUS
        and all(tensor.device == device and tensor.is_contiguous() for tensor in tensors)
        and gpu_kernels(device)
    )


def gpu_kernels(device: torch.device) -> bool:
    """Return whether Triton's kernels run on a device. The first call loads them."""
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
    """Load compiled kernels and return whether they work. Raise ImportError only if they were asked for by name."""
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
