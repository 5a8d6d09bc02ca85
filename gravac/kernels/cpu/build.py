"""Compiles the kernels at import for fixed types, so that no step ever waits for a compiler."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("gravac.kernels")


def jit(*signatures: str) -> Callable[[F], F]:
    """Compiles a function for these signatures only, without the GIL, or loads it from the cache on disk.

    The caller checks bounds: an index outside an array is not noticed. Whatever a kernel calls must stand in its own
    file, because the cache does not see changes in others.
    """

    def compile_(function: F) -> F:
        try:
            kernel = _njit(function, signatures, cache=True)
        except (
            Exception
        ) as error:  # no folder to write to, disk full, damaged file; a real error is raised again below
            log.debug("%s is compiled without a cache: %s", function.__name__, error)
            kernel = _njit(function, signatures, cache=False)
        return kernel

    return compile_


def _njit(function: F, signatures: tuple[str, ...], *, cache: bool) -> F:
    made = numba.njit(list(signatures), nogil=True, error_model="numpy", cache=cache)
    return cast(F, made(function))
