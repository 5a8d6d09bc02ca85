"""Which back end runs: ``cpu``, compiled by numba, or ``reference``, plain torch. Both give the same results.

``GRAVAC_KERNELS`` in the environment, or ``use``: ``auto`` (compiled where numba works), ``cpu`` or ``reference``.
"""

import importlib
import logging
import os
from typing import Literal, get_args

from torch import Tensor

Choice = Literal["auto", "cpu", "reference"]
log = logging.getLogger("gravac.kernels")
_KERNELS = ("tally", "top", "scatter", "bits", "places", "rounding", "feistel", "dealing")
"""The modules of ``gravac.kernels.cpu`` that hold compiled functions."""
_chosen: Choice | None = None
_active: Literal["cpu", "reference"] | None = None


def use(choice: Choice) -> None:
    """Choose the back end of this process; ``cpu`` is loaded at once.

    Raises ValueError for a name there is not, and ImportError for ``cpu`` where numba is missing or does not work.
    """
    global _chosen, _active
    if choice not in get_args(Choice):
        raise ValueError(f"GRAVAC_KERNELS={choice!r} must be one of {', '.join(get_args(Choice))}")
    _chosen, _active = choice, None
    if choice == "cpu":
        active()


def active() -> Literal["cpu", "reference"]:
    """The back end in use, decided and loaded now if it was not yet. Raises as ``use`` does."""
    global _active
    if _active is None:
        if _chosen is None:
            use(os.environ.get("GRAVAC_KERNELS", "auto"))  # type: ignore[arg-type]  # checked there
        if _active is None:
            _active = "reference" if _chosen == "reference" else _load()
    return _active


def warm() -> Literal["cpu", "reference"]:
    """Load, and where needed compile, everything now rather than in the first step; call it before training.

    Compiled code is kept on disk beside the package, else in the user's cache folder, else nowhere (it is then made
    again by each process). ``NUMBA_CACHE_DIR`` names another folder.
    """
    return active()


def compiled(*tensors: Tensor) -> bool:
    """Whether the compiled kernels take these: they do what lies in the machine's memory, in one piece."""
    return active() == "cpu" and all(
        tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors
    )


def _load() -> Literal["cpu", "reference"]:
    """Whatever keeps numba from working, training goes on without it, unless it was asked for by name."""
    try:
        for name in _KERNELS:
            importlib.import_module(f"gravac.kernels.cpu.{name}")
    except Exception as error:
        if _chosen == "cpu":
            raise ImportError(
                f"GRAVAC_KERNELS='cpu' needs a working numba: pip install 'gravac[cpu]' ({error})"
            ) from error
        missing = isinstance(error, ModuleNotFoundError)
        log.log(
            logging.INFO if missing else logging.WARNING,
            "compiled kernels not available, using plain torch, which is several times slower: %s",
            error,
        )
        return "reference"
    return "cpu"
