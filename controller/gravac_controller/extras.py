"""What is not installed with gravac itself: an error that says what to type."""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtra(RuntimeError):
    """A package of an extra is not there; the message names the command that brings it."""


@contextmanager
def needs(extra: str, package: str) -> Iterator[None]:
    """Around the import of ``package``, which ``gravac[extra]`` brings. Raises MissingExtra."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            f"this needs {package}, which is not installed here ({error}); to have it: pip install 'gravac[{extra}]'"
        ) from None
