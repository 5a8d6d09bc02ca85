"""What a job refuses, in words."""

from gravac_controller.problems import ApiError
from gravac_controller.safe_text import printable


def wrong_incarnation(given: str) -> ApiError:
    """A start of the trainer that another one has replaced."""
    return ApiError(
        409,
        f"incarnation {given!r} is not the registered one; another start of this trainer has taken over, or "
        "this one must register first",
        reason="wrong_incarnation",
    )


def has_ended(incarnation: str) -> ApiError:
    """A start of the trainer that said it was over."""
    return ApiError(
        409,
        f"incarnation {incarnation!r} has ended; a restarted trainer needs a new incarnation",
        reason="ended",
    )


def stale(now: str, seen: str) -> ApiError:
    """An order about an epoch that is not in force any more, or after another order."""
    return ApiError(
        412,
        f"this is epoch {now!r} now, not {seen!r}: look at what holds before giving the order again",
        reason="stale_epoch",
        headers={"etag": f'"{now}"'},
    )


def undecidable(policy: str, error: Exception) -> ApiError:
    """The policy breaks on the state it holds, as one that was tampered with may make it."""
    return ApiError(
        409,
        f"policy {policy!r} cannot go on from the state that this job holds ({printable(str(error))}); use another "
        "job name to begin afresh",
        reason="undecidable",
    )


def unwritable(error: Exception) -> ApiError:
    """The disk refuses. Nothing was taken, so the sender may try again."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ApiError(
        503,
        f"the journal cannot be written ({why}); nothing was taken, try again later",
        reason="journal",
        headers={"retry-after": "5"},
    )
