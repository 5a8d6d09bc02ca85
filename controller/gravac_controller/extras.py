"""Optional dependencies: an error that names the command to install them."""

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtra(RuntimeError):
    """A package of an extra is not installed; the message names the command that installs it."""


@contextmanager
def needs(extra: str, package: str) -> Iterator[None]:
    """Wrap the import of ``package``, which ``gravac[extra]`` installs. Raises MissingExtra."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            f"this needs {package}, which is not installed ({error}); install it with: pip install 'gravac[{extra}]'"
        ) from None
