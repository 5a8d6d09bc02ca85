"""What the types of a report cannot say: rules between its fields. Each fault names the field, the value, the rule."""

from collections.abc import Iterator

from pydantic import TypeAdapter
from pydantic_core import from_json

from gravac.fold import JobFold
from gravac.protocol import Event, JobSpec, Name, WindowReport
from gravac_controller.api.problems import ApiError
from gravac_controller.views.models import Fault

OURS = ("registered", "restarted", "gap", "override")
"""Kinds of events that the controller writes into a journal. A forged gap would hide missing windows."""


LARGEST_COUNTER = 2**52
"""Windows and epochs begin at most here; records hold numbers up to 2^53, so no job counts that far."""
NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, a dot not first"
_NAME = TypeAdapter[str](Name)


def is_job_name(name: str) -> bool:
    """Whether a folder of this name can be a job's."""
    try:
        _NAME.validate_python(name)
    except ValueError:  # also of names that are not text at all
        return False
    return True


def check_name(name: str) -> None:
    """A job's name becomes a folder's: refuse ".", ".." and hidden names. Raises ApiError 422."""
    if name.startswith("."):
        fault = Fault(field="job", message="a job's name must not begin with a dot")
        raise ApiError(422, f"{fault.field}: {fault.message}", errors=(fault,))


def check_counters(spec: JobSpec) -> None:
    """Refuse numbers that a job would count beyond the largest that a record holds. Raises ApiError 422."""
    if spec.first_window > LARGEST_COUNTER:
        message = f"{spec.first_window} is beyond {LARGEST_COUNTER} (2^52)"
        raise ApiError(
            422, f"first_window: {message}", errors=(Fault(field="first_window", message=message),)
        )
    if spec.policy_state is not None and (found := _too_large(spec.policy_state)) is not None:
        message = f"holds the number {found}, beyond {LARGEST_COUNTER} (2^52)"
        raise ApiError(
            422, f"policy_state: {message}", errors=(Fault(field="policy_state", message=message),)
        )


def _too_large(text: str) -> int | None:
    """An integer in this JSON that is too large to count on from; null where there is none, or this is not JSON."""
    try:
        nodes = [from_json(text)]
    except ValueError:
        return None  # whoever parses it as a state says what is wrong
    while nodes:
        node = nodes.pop()
        if isinstance(node, int) and abs(node) > LARGEST_COUNTER:
            return node if abs(node) <= 2**64 else 2**64
        nodes += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return None


def pin_limit(fold: JobFold) -> float | None:
    """The largest CF that the job's agents obey when an operator pins it; null where they did not say."""
    limit = (fold.spec.settings or {}).get("max_cf")
    return max(float(limit), fold.policy.largest_cf()) if isinstance(limit, int | float) else None


def check_same_job(path_job: str, body_job: str) -> None:
    """The job in the path and the one in the body must be the same. Raises ApiError 422."""
    if path_job != body_job:
        fault = Fault(field="job", message=f"the body says {body_job!r}, the path {path_job!r}")
        raise ApiError(422, f"{fault.field}: {fault.message}", errors=(fault,))


def check_event(event: Event) -> None:
    """Agents tell of themselves; what the controller notes of itself is not theirs to say. Raises ApiError 422."""
    if event.kind in OURS:
        message = f"{event.kind!r} is noted by the controller itself"
        raise ApiError(422, f"kind: {message}", errors=(Fault(field="kind", message=message),))


def check_report(report: WindowReport, spec: JobSpec) -> None:
    """Refuse a report that contradicts itself or its job. Raises ApiError 422 with every fault found.

    Times are not compared with the window's wall time: ranks' clocks differ, and a window that a rank joined late
    is odd but true.
    """
    faults = tuple(Fault(field=field, message=message) for field, message in _faults(report, spec))[:20]
    if faults:
        raise ApiError(422, f"{faults[0].field}: {faults[0].message}", errors=faults)


def _faults(report: WindowReport, spec: JobSpec) -> Iterator[tuple[str, str]]:
    if report.window > LARGEST_COUNTER:
        yield "window", f"{report.window} is beyond {LARGEST_COUNTER} (2^52)"
    if report.last_step < report.first_step:
        yield "last_step", f"{report.last_step} is before first_step {report.first_step}"
        return
    steps = report.last_step - report.first_step + 1
    rank_steps = steps * spec.world_size
    for name in ("nonfinite_steps", "failed_steps"):
        if getattr(report, name) > rank_steps:
            yield name, f"{getattr(report, name)} in {steps} steps of {spec.world_size} ranks"
    in_levels = sum(level.steps for level in report.levels)
    if in_levels > steps:
        yield "levels", f"their steps add up to {in_levels}, the window has {steps}"
    for number, level in enumerate(report.levels):
        if level.settled_steps > level.steps:
            yield f"levels.{number}.settled_steps", f"{level.settled_steps} of {level.steps} steps"
        if level.sums.steps > level.steps * spec.world_size:
            yield f"levels.{number}.sums.steps", f"{level.sums.steps} of {level.steps} steps"
        if level.sums.mean_steps > level.steps:
            yield f"levels.{number}.sums.mean_steps", f"{level.sums.mean_steps} of {level.steps} steps"
    seen: set[int] = set()
    for number, row in enumerate(report.ranks):
        if row.rank >= spec.world_size:
            yield f"ranks.{number}.rank", f"{row.rank} in a job of {spec.world_size} ranks"
        if row.rank in seen:
            yield f"ranks.{number}.rank", f"{row.rank} is listed twice"
        seen.add(row.rank)
        if row.steps > steps:
            yield f"ranks.{number}.steps", f"{row.steps} in a window of {steps}"
