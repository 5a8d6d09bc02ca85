"""Which backend runs: compiled by numba for the host's memory, by Triton for GPUs, or plain torch. The same results.

``GRAVAC_KERNELS`` in the environment, or ``use``: ``auto`` (compiled wherever that works), ``cpu`` (likewise, but numba
must work), ``cuda`` (likewise, but Triton must work) or ``reference`` (plain torch everywhere).
"""

import importlib
import logging
import os
from typing import Literal, get_args

import torch
from torch import Tensor

Choice = Literal["auto", "cpu", "cuda", "reference"]
log = logging.getLogger("gravac.kernels")
_KERNELS = ("tally", "top", "sifting", "linalg", "bits", "rounding", "draws")
"""The modules of ``gravac.kernels.cpu`` that hold compiled functions."""
_GPU_KERNELS = ("tally", "top", "linalg", "bits", "rounding", "draws")
"""The same of ``gravac.kernels.cuda``."""
_GPUS = ("cuda",)
"""Types of device that Triton's kernels take tensors of."""
_chosen: Choice | None = None
_active: Literal["cpu", "reference"] | None = None
_gpu: bool | None = None
_lacking = ""


def use(choice: Choice) -> None:
    """Choose the backend of this process; what is asked for by name is loaded at once.

    Raises ValueError for a name there is not, and ImportError for ``cpu`` or ``cuda`` where numba or Triton is missing
    or does not work.
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
    """The backend in use for the host's memory, decided and loaded now if it was not yet. Raises as ``use`` does."""
    global _active
    if _active is None:
        _decide()
        if _active is None:
            _active = "cpu" if _chosen != "reference" and _load("cpu") else "reference"
    return _active


def lacking() -> str:
    """Why the compiled kernels for the host's memory could not be loaded; empty when they could, or were not tried."""
    return _lacking


def warm() -> Literal["cpu", "reference"]:
    """Load, and where needed compile, everything now rather than in the first step; call it before training.

    Compiled code is kept on disk: numba's beside the package, else in the user's cache folder, else nowhere (it is then
    made again by each process; ``NUMBA_CACHE_DIR`` names another folder), Triton's in ``TRITON_CACHE_DIR``. Kernels for
    GPUs are compiled in processes that have used one, for the current one.
    """
    if torch.cuda.is_initialized() and gpu_kernels(torch.device("cuda")):
        from gravac.kernels.cuda.warm import run_all

        run_all(torch.device("cuda", torch.cuda.current_device()))
    return active()


def compiled(*tensors: Tensor) -> bool:
    """Whether the compiled kernels take these: they do what lies in the machine's memory, in one piece."""
    if active() != "cpu":
        return False
    for tensor in tensors:  # noqa: SIM110  # a generator takes twice as long
        if not (tensor.is_cpu and tensor.is_contiguous()):
            return False
    return True


def on_gpu(*tensors: Tensor) -> bool:
    """Whether Triton's kernels take these: they do what lies on one GPU, each in one piece."""
    device = tensors[0].device
    return (
        device.type in _GPUS
        and all(tensor.device == device and tensor.is_contiguous() for tensor in tensors)
        and gpu_kernels(device)
    )


def gpu_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels run on that device; loaded now if they were not yet."""
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
    """Whatever keeps the compiler from working, training goes on without it, unless it was asked for by name."""
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
        # Each rank comes by here: the agent's rank 0 tells it, with the cure.
        log.info(
            "compiled kernels (%s) not available, using plain torch, which is several times slower: %s",
            compiler,
            error,
        )
        if name == "cpu":
            _lacking = str(error)
        return False
    return True
