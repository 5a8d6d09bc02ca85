"""The search as it was before it was thorough: it stops at the first rung that does not pay (``search=greedy``).

Jobs that were recorded then go on by these rules, and their traces replay.
"""

from gravac.policies import candidates
from gravac.policies.candidates import Candidates, useful
from gravac.policies.paper.evaluation import Evaluation
from gravac.policies.windows import MOST, Measurement
from gravac.wording import format_cf, format_number, format_percent


def rates(evaluation: Evaluation, rows: Candidates) -> tuple[bool, str]:
    """Return whether the candidate clearly beats the rung below, and how the two compare."""
    cf = evaluation.previous.cf_candidate
    here, below = candidates.row(rows, cf), candidates.row(rows, evaluation.rung_below(cf))
    compared = f"{format_number(useful(here))} useful samples/s against {format_number(useful(below))} {at(below.cf)}"
    return useful(here) > useful(below) * (1 + evaluation.settings.omega_throughput), compared


def stop(
    evaluation: Evaluation, rows: Candidates, measured: Measurement, gain: float, keeps: str
) -> str | None:
    """Return why the search ends at the candidate, or None if it goes on."""
    tolerance, cf = evaluation.settings.omega_throughput, evaluation.previous.cf_candidate
    pays, compared = rates(evaluation, rows)
    free, best = measured.free_samples_per_second, max(useful(row) for row in rows)
    ceiling = None if free is None else min(MOST, free * gain)
    if ceiling is not None and ceiling <= best * (1 + tolerance):
        return (
            f"{keeps} and gives {compared}. Even with a free network it would give {format_number(ceiling)}, "
            f"so no stronger CF can beat {format_number(best)} by more than {format_percent(tolerance)}."
        )
    if not pays and evaluation.rung_below(cf) != 1.0:
        return f"{format_cf(cf)} gives {compared}: no longer {format_percent(tolerance)} more."
    return None


def at(cf: float) -> str:
    """Return where a rate was measured, in words."""
    return "dense" if cf == 1.0 else f"at {format_cf(cf)}"
