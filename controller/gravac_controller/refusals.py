"""What a job refuses, in words."""

from gravac_controller.problems import ApiError


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


def steering_is_off() -> ApiError:
    """An order to a controller that was started without steering."""
    return ApiError(
        403,
        "steering is off at this controller: start it with --owner-may-steer, or with --control-token-file FILE "
        "(GRAVAC_CONTROLLER_CONTROL_TOKEN); one that a training starts, with GRAVAC_STEERING=owner",
        reason="control_off",
    )


def not_an_operator() -> ApiError:
    """An order without the control token."""
    return ApiError(
        401,
        "steering needs the control token, which the controller was started with (--control-token-file, "
        "GRAVAC_CONTROLLER_CONTROL_TOKEN): send Authorization: Bearer TOKEN; the agents' GRAVAC_TOKEN does not do",
        reason="unauthorized",
        headers={"www-authenticate": "Bearer"},
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
