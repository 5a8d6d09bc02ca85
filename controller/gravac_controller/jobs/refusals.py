"""What a job refuses, in words."""

import math

from gravac.wording import printable
from gravac_controller.api.problems import ApiError
from gravac_controller.views.models import Fault


def wrong_incarnation(given: str, job: str) -> ApiError:
    """A start of the trainer that has never registered."""
    return ApiError(
        409,
        f"incarnation {given!r} is not the one registered for job {job!r}; register it with POST /v1/jobs first",
        reason="wrong_incarnation",
    )


def superseded(given: str, job: str, by: str) -> ApiError:
    """A start of the trainer that another one has replaced."""
    return ApiError(
        409,
        f"run {given!r} no longer holds job {job!r}: run {by!r} registered later and took it over; nothing more of "
        "this run is taken. To train both at once, give each a job= name of its own",
        reason="superseded",
    )


def job_is_live(given: str, job: str, holder: str, silent_seconds: float, wait_seconds: float) -> ApiError:
    """Another start of the trainer, while the registered one still reports."""
    wait = max(1, math.ceil(wait_seconds))
    return ApiError(
        409,
        f"job {job!r} is held by run {holder!r}, which was last heard of {silent_seconds:.1f} s ago; run {given!r} may "
        f"not take it over. Give this training another job= name; or, if that run died, try again in {wait} s",
        reason="job_is_live",
        headers={"retry-after": str(wait)},
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


def pin_too_strong(cf: float, limit: float) -> ApiError:
    """A pin that the job's agents would not obey."""
    fault = Fault(
        field="cf", message=f"{cf:g} is above {limit:g}, the most that this job's agents obey (max_cf)"
    )
    return ApiError(
        422, f"{fault.field}: {fault.message}; set GRAVAC_MAX_CF for the training", errors=(fault,)
    )


def undecidable(policy: str, error: Exception) -> ApiError:
    """The policy breaks on the state it holds, as one that was tampered with may make it."""
    return ApiError(
        409,
        f"policy {policy!r} cannot go on from the state that this job holds ({printable(str(error), 300)}); use "
        "another job name to begin afresh",
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
