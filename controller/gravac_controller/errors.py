"""Errors that clients get an answer for: what was refused, why, and what to do about it; and a missing extra.

Domain code raises these. Only ``api/`` knows HTTP: ``api/problems.py`` gives each class its status.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gravac.protocol import Record


class Fault(Record):
    """One invalid field. ``field``: dotted path into the body, or the name of a parameter."""

    field: str
    message: str


class RequestError(Exception):
    """Base class: the request was understood and nothing was changed.

    Args:
        detail: What is wrong and how to fix it, for people.
        reason: One word for programs, and a label of ``gravac_reports_rejected_total``.
        faults: The invalid fields.
        retry_after: Seconds after which the same request may succeed; None where repeating it does not help.
    """

    def __init__(
        self,
        detail: str,
        *,
        reason: str = "invalid",
        faults: tuple[Fault, ...] = (),
        retry_after: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail, self.reason, self.faults, self.retry_after = detail, reason, faults, retry_after


class Invalid(RequestError):
    """The content breaks a rule that its types cannot express."""

    @classmethod
    def field(cls, name: str, message: str, *, fix: str = "") -> "Invalid":
        """One invalid field. ``fix``: what to do about it, appended to the detail."""
        return cls(f"{name}: {message}{fix}", faults=(Fault(field=name, message=message),))


class Unknown(RequestError):
    """What was asked for does not exist."""


class NotServed(RequestError):
    """This controller does not offer that to any client."""


class Conflict(RequestError):
    """The request contradicts the state of the job."""


class Outdated(RequestError):
    """The sender decided on an older state than the current one. ``tag``: the current state."""

    def __init__(self, detail: str, tag: str, *, reason: str) -> None:
        super().__init__(detail, reason=reason)
        self.tag = tag


class LimitReached(RequestError):
    """A limit of this controller is reached."""


class Unavailable(RequestError):
    """This cannot be done at the moment."""


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
