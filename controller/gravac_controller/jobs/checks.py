"""Rules that the types of a record cannot express. Each fault names the field, the value and the rule."""

from collections.abc import Iterator

from pydantic import TypeAdapter
from pydantic_core import from_json

from gravac.fold import JobFold
from gravac.policies.steering import LARGEST_PIN
from gravac.protocol import Event, JobSpec, Name, WindowReport
from gravac_controller.errors import Fault, Invalid

CONTROLLER_KINDS = ("registered", "restarted", "gap", "override")
"""Kinds of events that only the controller writes. A forged gap would hide missing windows."""

LARGEST_COUNTER = 2**52
"""Largest first window or epoch. Records hold numbers up to 2^53, so no job counts beyond them."""
_NAME = TypeAdapter[str](Name)


def is_job_name(name: str) -> bool:
    """Return whether a folder of this name can be a job's."""
    try:
        _NAME.validate_python(name)
    except ValueError:  # also of names that are not text at all
        return False
    return True


def check_counters(spec: JobSpec) -> None:
    """Refuse counters from which a job would count beyond what a record holds. Raises Invalid."""
    if spec.first_window > LARGEST_COUNTER:
        raise Invalid.field("first_window", f"{spec.first_window} is beyond {LARGEST_COUNTER} (2^52)")
    if spec.policy_state is not None and (found := _too_large(spec.policy_state)) is not None:
        raise Invalid.field("policy_state", f"holds the number {found}, beyond {LARGEST_COUNTER} (2^52)")


def _too_large(text: str) -> int | None:
    """Return an integer in this JSON that is too large to count from; None without one, or where this is not JSON."""
    try:
        nodes = [from_json(text)]
    except ValueError:
        return None  # the policy that parses it says what is wrong
    while nodes:
        node = nodes.pop()
        if isinstance(node, int) and abs(node) > LARGEST_COUNTER:
            return node if abs(node) <= 2**64 else 2**64
        nodes += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return None


def pin_limit(fold: JobFold) -> float:
    """Return the largest CF that an operator may pin for this job's agents."""
    return max(LARGEST_PIN, fold.policy.largest_cf())


def check_same_job(path_job: str, body_job: str) -> None:
    """Refuse a body about another job than the one in the path. Raises Invalid."""
    if path_job != body_job:
        raise Invalid.field("job", f"the body says {body_job!r}, the path {path_job!r}")


def check_event(event: Event) -> None:
    """Refuse kinds of events that only the controller itself writes. Raises Invalid."""
    if event.kind in CONTROLLER_KINDS:
        raise Invalid.field("kind", f"only the controller itself writes {event.kind!r} events")


def check_report(report: WindowReport, spec: JobSpec) -> None:
    """Refuse a report that contradicts itself or its job.

    Times are not compared with the window's wall time: clocks of ranks differ, and a window that a rank joined late is
    odd but valid.

    Raises:
        Invalid: With every fault found, at most 20.
    """
    faults = tuple(Fault(field=field, message=message) for field, message in _faults(report, spec))[:20]
    if faults:
        raise Invalid(f"{faults[0].field}: {faults[0].message}", faults=faults)


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
        for name in ("mean_steps", "progress_steps"):
            if (counted := getattr(level.sums, name)) > level.steps:
                yield f"levels.{number}.sums.{name}", f"{counted} of {level.steps} steps"
    seen: set[int] = set()
    for number, row in enumerate(report.ranks):
        if row.rank >= spec.world_size:
            yield f"ranks.{number}.rank", f"{row.rank} in a job of {spec.world_size} ranks"
        if row.rank in seen:
            yield f"ranks.{number}.rank", f"{row.rank} is listed twice"
        seen.add(row.rank)
        if row.steps > steps:
            yield f"ranks.{number}.steps", f"{row.steps} in a window of {steps}"
