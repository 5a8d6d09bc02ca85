"""The errors of a job, with their messages."""

import math

from gravac.wording import printable
from gravac_controller.errors import Conflict, Invalid, Outdated, Unavailable, Unknown


def unknown_job() -> Unknown:
    """No job has this name."""
    return Unknown(
        "no such job; GET /v1/jobs lists the jobs, agents register with POST /v1/jobs", reason="unknown_job"
    )


def unreadable(why: str) -> Conflict:
    """The journal of this job cannot be read."""
    return Conflict(
        f"the journal of this job cannot be read: {why}; move it away and restart the controller, or use another job "
        "name",
        reason="unreadable",
    )


def wrong_incarnation(incarnation: str, job: str) -> Conflict:
    """A start of the trainer that never registered."""
    return Conflict(
        f"incarnation {incarnation!r} is not the one registered for job {job!r}; register it with POST /v1/jobs first",
        reason="wrong_incarnation",
    )


def superseded(incarnation: str, job: str, by: str) -> Conflict:
    """A start of the trainer that another one has replaced."""
    return Conflict(
        f"run {incarnation!r} no longer holds job {job!r}: run {by!r} registered later and took it over; reports of "
        "the old run are refused. To train both at once, give each its own job= name",
        reason="superseded",
    )


def job_is_live(
    incarnation: str, job: str, holder: str, silent_seconds: float, wait_seconds: float
) -> Conflict:
    """Another start of the trainer registers while the current one still reports."""
    wait = max(1, math.ceil(wait_seconds))
    return Conflict(
        f"job {job!r} is held by run {holder!r}, which last reported {silent_seconds:.1f} s ago; run {incarnation!r} "
        f"may not take it over. Give this training another job= name; or, if that run died, try again in {wait} s",
        reason="job_is_live",
        retry_after=wait,
    )


def has_ended(incarnation: str) -> Conflict:
    """A start of the trainer that has already ended."""
    return Conflict(
        f"incarnation {incarnation!r} has ended; a restarted trainer needs a new incarnation", reason="ended"
    )


def job_has_ended() -> Conflict:
    """An order for a job without a next window."""
    return Conflict("the job has ended: no window follows that could apply the order", reason="ended")


def conflicting_window(window: int, next_window: int) -> Conflict:
    """A window that is known with other content, or was skipped."""
    return Conflict(
        f"window {window} was reported before with other content, or was skipped; the next window is {next_window}",
        reason="conflict",
    )


def stale_order(current: str, seen: str) -> Outdated:
    """An order about an epoch that is no longer in force, or that another order preceded."""
    return Outdated(
        f"the epoch is now {current!r}, not {seen!r}: look at the current decision before repeating the order",
        current,
        reason="stale_epoch",
    )


def pin_too_strong(cf: float, limit: float) -> Invalid:
    """A pin above the CF that the job's agents accept."""
    return Invalid.field(
        "cf",
        f"{cf:g} is above {limit:g}, the largest that this job's agents accept",
        fix="; a policy that may choose a stronger CF raises it",
    )


def codec_not_built(codec: str, codecs: tuple[str, ...]) -> Invalid:
    """A pin with a codec that the job's ranks have not built."""
    return Invalid.field(
        "codec",
        f"{codec!r} is none of those that this job's ranks can send with: {', '.join(codecs)}",
        fix="; start the training with it, or with a policy that may choose it",
    )


def undecidable(policy: str, error: Exception) -> Conflict:
    """The policy fails on its own state, which may have been tampered with."""
    return Conflict(
        f"policy {policy!r} cannot continue from the state of this job ({printable(str(error), 300)}); use another job "
        "name to start over",
        reason="undecidable",
    )


def unwritable(error: Exception) -> Unavailable:
    """The disk refuses to write. The journal is unchanged, so the sender may repeat the request."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Unavailable(
        f"the journal cannot be written ({why}); nothing was recorded, try again later",
        reason="journal",
        retry_after=5,
    )


def not_ready(error: OSError) -> Unavailable:
    """The data folder cannot be written, so no report would be accepted."""
    return Unavailable(
        f"the data folder cannot be written ({error.strerror or error}); agents keep their reports until it can",
        reason="journal",
    )


def journal_unreadable(error: Exception) -> Unavailable:
    """The journal on disk cannot be read at the moment."""
    return Unavailable(f"the journal cannot be read: {error}", reason="journal")
