"""The backend of the kernels: compiled by numba for the host, by Triton for GPUs, or plain torch, with equal results.

Set by ``GRAVAC_KERNELS`` in the environment, or by ``use``: ``auto`` (compiled wherever that works), ``cpu`` (the same,
but numba must work), ``cuda`` (the same, but Triton must work) or ``reference`` (plain torch everywhere).
"""

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Choice = Literal["auto", "cpu", "cuda", "reference"]
Scalar = float | Tensor
"""A float for tensors in the host's memory. For a device's, where reading a number would wait, a float64 tensor on it,
of shape ``()``."""
log = logging.getLogger("gravac.kernels")
_GPU_KERNELS = (
    "tally",
    "top",
    "linalg",
    "bits",
    "rounding",
    "draws",
    "adam",
    "step_sums",
    "tiled",
    "rounded",
)
"""Modules of ``gravac.kernels.cuda`` with compiled functions."""
_GPUS = ("cuda",)
"""Types of the devices on which Triton's kernels run."""
host: Any
"""The compiled kernels for the host's memory; None where plain torch runs. The first look decides and loads them.

A kernel takes the addresses of tensors, as its module in ``gravac.kernels.cpu`` says, and lets other threads run. It
checks nothing: they must be in the host's memory, contiguous and of the dtype that it is written for.
"""
_chosen: Choice | None = None
_loaded: SimpleNamespace | None = None
_active: Literal["cpu", "reference"] | None = None
_gpu: bool | None = None
_lacking = ""
treated: list[None] = []
"""Marks of callers that treat the host's tensors as a device's; empty: nobody does."""
_compiler: Callable[[], bytes] | None = None


def __getattr__(name: str) -> Any:
    if name != "host":  # known from the first look on
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _decided()


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
    globals().pop("host", None)
    if choice == "cpu":
        active()
    if choice == "cuda":
        _gpu = _load_gpu()


def active() -> Literal["cpu", "reference"]:
    """Return the backend for the host's memory. The first call decides and loads it. Raises as ``use`` does."""
    global _active, _loaded
    if _active is None:
        _read_environment()
        if _active is None:
            _active = "cpu" if _chosen != "reference" and _load_host() else "reference"
    return _active


@contextmanager
def treated_as_device() -> Iterator[None]:
    """Treat the host's tensors as a device's, in all threads. Tests and the simulated device use it.

    Kernels then run in plain torch, and return tensors instead of floats.
    """
    treated.append(None)  # atomic, as several threads may be inside
    globals()["host"] = None
    try:
        yield
    finally:
        treated.pop()
        if not treated:
            globals().pop("host", None)


def on_device(x: Tensor) -> bool:
    """Return whether ``x`` is on a device, so that nothing may read its elements within a step."""
    return not x.is_cpu or bool(treated)


def is_device(device: torch.device | None) -> bool:
    """Return whether tensors there are on a device, as ``on_device``; None is the host."""
    return bool(treated) or (device is not None and device.type != "cpu")


def scalar(x: Tensor) -> Scalar:
    """Return a tensor of one element as a scalar."""
    return x.double().reshape(()) if on_device(x) else float(x)


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for the copy."""
    if device.type == "cpu":
        return x
    if device.type != "cuda":
        return x.to(device, non_blocking=True)
    with torch.cuda.device(device):  # else pinning makes a context on the first GPU
        return x.pin_memory().to(device, non_blocking=True)


def lacking() -> str:
    """Return why the compiled kernels for the host cannot be loaded; empty if they can, or were not tried."""
    return _lacking


def compile_by(compiler: Callable[[], bytes]) -> None:
    """Set a function that returns what ``gravac.kernels.cpu.load.main`` wrote in another process.

    It is called where no file has the kernels. Without it, or where it fails, they are compiled in this process.
    """
    global _compiler
    _compiler = compiler


def warm() -> Literal["cpu", "reference"]:
    """Load all kernels, and compile them if needed. Call it before training, so that the first step does not wait.

    Compiled code is cached on disk. That of the host is beside the package, or else in the user's cache folder; if
    neither can be written, each process compiles again, unless ``NUMBA_CACHE_DIR`` names a folder. Triton's is in
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
    known = globals()
    if (known["host"] if "host" in known else _decided()) is None:
        return False
    for tensor in tensors:  # noqa: SIM110  # a generator takes twice as long
        if not (tensor.is_cpu and tensor.is_contiguous()):
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
        _read_environment()
        if _gpu is None:
            _gpu = _chosen != "reference" and _load_gpu()
    return _gpu


def _decided() -> SimpleNamespace | None:
    """Return ``host``, which is known from then on."""
    known = globals()
    if "host" not in known:
        active()
        host = _loaded if _active == "cpu" and "cpu" not in _GPUS else None
        known["host"] = host
        if treated:  # perhaps since a moment, in another thread
            known["host"] = host = None
        return host
    return known["host"]  # type: ignore[no-any-return]


def _read_environment() -> None:
    if _chosen is None:
        use(os.environ.get("GRAVAC_KERNELS", "auto"))  # type: ignore[arg-type]  # checked there


def _load_host() -> bool:
    """Load the compiled kernels for the host's memory, and return whether they work."""
    global _loaded, _lacking
    try:
        if _loaded is None:
            from gravac.kernels.cpu import load

            _loaded = load.load(_compiler)
    except Exception as error:
        _lacking = _missing("cpu", "numba", error)
        return False
    return True


def _load_gpu() -> bool:
    """Load Triton's kernels, and return whether they work."""
    try:
        for module in _GPU_KERNELS:
            importlib.import_module(f"gravac.kernels.cuda.{module}")
    except Exception as error:
        _missing("cuda", "Triton", error)
        return False
    return True


def _missing(name: Choice, compiler: str, error: Exception) -> str:
    """Say why there are no compiled kernels; raise ImportError if they were asked for by name."""
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
    return str(error)
