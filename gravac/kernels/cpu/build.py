"""Compiling kernels at import for fixed types, so that no step ever waits for a compiler."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from gravac.kernels import backend

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("gravac.kernels")


def jit(*signatures: str) -> Callable[[F], F]:
    """Compile a function for these signatures only, without the GIL, or load it from the cache on disk.

    The caller checks bounds, because a kernel does not notice an index outside an array. Kernels index with unsigned
    integers: numba then leaves out its test for negative ones, and loops can become vector code. Whatever a kernel
    calls must stand in its own file, because the cache does not see changes in other files.
    """

    def compile_(function: F) -> F:
        try:
            kernel = _njit(function, cache=True)
            if not all(_cached(kernel, signature) for signature in signatures):
                backend.fill_cache()
            _compile(kernel, signatures)
        except Exception as error:
            # No folder to write to, a full disk or a damaged file. An error of the function itself is raised below.
            log.debug("%s is compiled without a cache: %s", function.__name__, error)
            kernel = _njit(function, cache=False)
            _compile(kernel, signatures)
        return cast(F, kernel)

    return compile_


def _cached(kernel: Any, signature: str) -> bool:
    """Return whether the cache on disk has a kernel; True if numba's internals do not tell."""
    try:
        key = kernel._cache._index_key(signature, kernel.targetctx.codegen())
        return key in kernel._cache._cache_file._load_index()
    except AttributeError:
        return True


def _compile(kernel: Any, signatures: tuple[str, ...]) -> None:
    for signature in signatures:
        kernel.compile(signature)
    kernel.disable_compile()


def _njit(function: Callable[..., Any], *, cache: bool) -> Any:
    return numba.njit(nogil=True, error_model="numpy", cache=cache)(function)
