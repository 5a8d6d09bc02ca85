"""The candidates: what the policy knows of each plan, listed in every decision so that everyone sees it."""

from collections.abc import Mapping
from typing import Literal

from gravac.policies.windows import WindowMeasurement
from gravac.protocol import Candidate

Candidates = tuple[Candidate, ...]
"""One row per plan: of each codec, the CFs of its ladder, ascending."""
VerdictWord = Literal["untried", "trying", "passed", "too_strong", "chosen"]


def untried(cfs: tuple[float, ...], codec: str | None = None) -> Candidates:
    """Return a row for each of ``cfs``, of which nothing is known. ``codec`` None: the job's compressor."""
    return tuple(
        Candidate(
            cf=cf,
            gain=None,
            samples_per_second=None,
            useful_samples_per_second=None,
            window=None,
            verdict="untried",
            codec=codec,
        )
        for cf in cfs
    )


def row(rows: Candidates, cf: float, codec: str | None = None) -> Candidate:
    """Return the row of a plan, which must be among them."""
    return next(candidate for candidate in rows if (candidate.cf, candidate.codec) == (cf, codec))


def update(rows: Candidates, measurements: Mapping[float, WindowMeasurement]) -> Candidates:
    """Return the rows with a window's measurements instead of older ones. A CF without a gain stays as it is."""
    updated = list(rows)
    for place, candidate in enumerate(rows):
        measured = measurements.get(candidate.cf)
        if measured is None or measured.codec != candidate.codec:
            continue
        if measured.useful_samples_per_second is not None:
            changes = {
                "gain": measured.gain,
                "samples_per_second": measured.samples_per_second,
                "useful_samples_per_second": measured.useful_samples_per_second,
                "window": measured.window,
                "verdict": "passed" if candidate.verdict == "untried" else candidate.verdict,
            }
            updated[place] = candidate.model_copy(update=changes)
    return tuple(updated)


def mark(
    rows: Candidates, cf: float, verdict: VerdictWord, gain: float | None = None, codec: str | None = None
) -> Candidates:
    """Return the rows with another verdict on a plan, and its gain if one is given."""
    changes: dict[str, object] = {"verdict": verdict} if gain is None else {"verdict": verdict, "gain": gain}
    return tuple(
        candidate.model_copy(update=changes) if (candidate.cf, candidate.codec) == (cf, codec) else candidate
        for candidate in rows
    )


def choose(rows: Candidates, epsilon: float, tolerance: float) -> tuple[Candidate, Candidate]:
    """Return the row to hold and the row with the highest T_comp, of those measured with at least ``epsilon``.

    They differ if a lower CF is within ``tolerance`` (relative) of the best: it is chosen, as it sends more. Dense
    always qualifies, and is both if nothing was measured.
    """
    usable = [
        candidate
        for candidate in rows
        if candidate.useful_samples_per_second is not None
        and candidate.verdict != "too_strong"
        and (candidate.cf == 1.0 or (candidate.gain is not None and candidate.gain >= epsilon))
    ]
    if not usable:
        return rows[0], rows[0]
    best = max(usable, key=useful)
    chosen = next(candidate for candidate in usable if useful(candidate) * (1 + tolerance) >= useful(best))
    return chosen, best


def useful(candidate: Candidate) -> float:
    """Return T_comp, 0 if not measured."""
    return candidate.useful_samples_per_second or 0.0
