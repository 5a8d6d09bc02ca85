"""The table of candidates: one row a CF, kept in the decision so that everybody sees what the policy knows."""

from collections.abc import Mapping
from typing import Literal

from gravac.policies.measure import Measurement
from gravac.protocol import Candidate

Table = tuple[Candidate, ...]
VerdictWord = Literal["untried", "trying", "passed", "too_strong", "chosen"]


def fresh(cfs: tuple[float, ...]) -> Table:
    """Nothing known."""
    return tuple(untried(cf) for cf in cfs)


def untried(cf: float) -> Candidate:
    """A row of which nothing is known."""
    return Candidate(
        cf=cf,
        gain=None,
        samples_per_second=None,
        useful_samples_per_second=None,
        window=None,
        verdict="untried",
    )


def row(table: Table, cf: float) -> Candidate:
    """The row of ``cf``, which must be in the table."""
    return next(candidate for candidate in table if candidate.cf == cf)


def record(table: Table, seen: Mapping[float, Measurement]) -> Table:
    """The table with this window's measurements in place of older ones. A CF without a gain is not recorded."""

    rows = list(table)
    for place, candidate in enumerate(table):
        measured = seen.get(candidate.cf)
        if measured is not None and measured.useful_samples_per_second is not None:
            rows[place] = Candidate(
                cf=candidate.cf,
                gain=measured.gain,
                samples_per_second=measured.samples_per_second,
                useful_samples_per_second=measured.useful_samples_per_second,
                window=measured.window,
                verdict="passed" if candidate.verdict == "untried" else candidate.verdict,
            )
    return tuple(rows)


def mark(table: Table, cf: float, verdict: VerdictWord, gain: float | None = None) -> Table:
    """The table with another verdict on ``cf``, and its gain where one is given."""
    changes: dict[str, object] = {"verdict": verdict} if gain is None else {"verdict": verdict, "gain": gain}
    return tuple(
        candidate.model_copy(update=changes) if candidate.cf == cf else candidate for candidate in table
    )


def choose(table: Table, epsilon: float, tolerance: float) -> tuple[Candidate, Candidate]:
    """The row to settle on and the row with the highest T_comp, of those measured that keep at least ``epsilon``.

    They differ when a lower CF is within ``tolerance`` (relative) of the best: it is chosen, as it sends more.
    Dense always keeps enough. Dense is the answer when nothing was measured.
    """
    usable = [
        candidate
        for candidate in table
        if candidate.useful_samples_per_second is not None
        and candidate.verdict != "too_strong"
        and (candidate.cf == 1.0 or (candidate.gain is not None and candidate.gain >= epsilon))
    ]
    if not usable:
        return table[0], table[0]
    best = max(usable, key=useful)
    chosen = next(candidate for candidate in usable if useful(candidate) * (1 + tolerance) >= useful(best))
    return chosen, best


def useful(candidate: Candidate) -> float:
    """T_comp, 0 when not measured."""
    return candidate.useful_samples_per_second or 0.0
