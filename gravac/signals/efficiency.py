"""Statistical efficiency η: steps that dense training needs / steps that a plan needs, to the same held-out metric.

``expected`` is what simulations showed for a codec at a CF. ``measured`` corrects it by what a window showed. Decisions
depend on both, so the arithmetic is + - * / and square roots only, which give the same bits on every platform.
"""

import math
from dataclasses import dataclass

from gravac import offers
from gravac.offers import EfficiencyRow, TableKind
from gravac.protocol import GainSums, Kept

PER_LATE = 3.4
"""Steps lost for each step of backlog τ, times the share ρ of the mean gradient that the next one confirms: noise may
come late at no cost. Fitted to simulations (docs/efficiency.md). [steps; fitted]"""
PER_LOST = 0.4
"""Steps lost for each factor e by which the parameters fall short of the dense reference. Fitted likewise.
[steps; fitted]"""
PROGRESS_NOISE = 0.2
"""|ln P| up to which P is noise under SGD. Late gradients are counted already; P further from 1, above or below, shows
an unstable training. [1; chosen]"""
TABLE_STEPS = 20
"""The table counts as much as this many steps next to the dense reference. [steps; chosen]"""
LEAST_STEPS = 20
"""Steps next to the dense reference that a window needs: shorter blocks count a delay as a loss. [steps; chosen]"""
UNCERTAIN = 0.08
"""How far from the best estimate the credible range goes, where progress was measured. [share; chosen]"""
PER_BACKLOG = 0.65
"""Steps lost for each step of backlog, where nothing else was measured: η = 1 / (1 + 0.65 τ) under SGD.
[steps; simulated]"""
PER_BACKLOG_OTHERS = 2.0
"""The same for optimizers that divide by √v or take signs, which a late gradient misleads more. [steps; simulated]"""
AGED_PROGRESS_LOSS, AGED_BACKLOG = 1.0, 0.35
"""ln 1/P and backlog up to which they say nothing of what late gradients lose under kinds of ``LATE``: at the
end of a block they still wait. In simulations that kept 0.82 to 1, P was 0.29 to 0.87 and τ 0.15 to 0.26, in no order;
in early windows τ reached 0.33. [1, steps; simulated]"""
MATRIX_TIMES = 1.5
"""Optimizers of whole matrices lose this many times what Adam loses, where nothing of their own was simulated.
[times; simulated]"""
LATE: dict[str, TableKind] = {"adam-aged": "aged", "adam-low-beta": "low_beta"}
"""Kinds of optimizer that bear gradients which arrive late, and the simulations of them that count."""
UNSIMULATED = frozenset({"sign", "other"})
"""Kinds of optimizer of which none was simulated. Nothing is known of them, before or after a window."""
TELLING = frozenset({"sgd"})
"""Kinds of optimizer for which ``measured`` says more than ``expected`` where no dense reference was measured."""
CREDIBLE = 0.1
"""The window's own estimate counts beyond the range of the simulations once it is this far below it. [share; chosen]"""
LOWEST = 0.01
"""Least efficiency that is estimated, and least progress that counts. [share; chosen]"""
LEAST_KEPT, ROUNDING = 0.9, 1e-9
"""A plan whose efficiency may be lower, credibly, is not advised or chosen for what is expected of it, whatever the
bound: what it loses in a training of a planned number of steps is seldom made up for in time. [share; chosen]"""
TYPICAL_CONFIRMED = 0.13
"""Median ρ of the simulated trainings with SGD. The noisier the gradient, the less compression costs there: the losses
of the table, times ρ / 0.13, order plans far better than the table alone (docs/efficiency.md). [share; simulated]"""
LEAST_TIMES, MOST_TIMES = 0.1, 1.5
"""Range of that factor, as far as simulations go. Random rounding, which delays nothing, never loses more for it.
[times; simulated]"""
SIMULATED_RANKS = 4
"""Ranks of the simulations. With fewer, codecs whose errors average out over ranks lose more.
With more, Adam with a small β₁ loses more by what
comes late: an element that arrives brings a smaller share of what waits. [ranks; simulated]"""
_LOG_2 = 0.6931471805599453


@dataclass(frozen=True, slots=True)
class Efficiency:
    """An estimate of η, from above 0 to 1.

    Attributes:
        likely: best estimate.
        low: lowest that is credible.
        high: highest that is credible.
    """

    likely: float
    low: float
    high: float

    @property
    def reliable(self) -> bool:
        """Whether the plan keeps enough even at the lowest credible estimate."""
        return self.low >= LEAST_KEPT - ROUNDING


CERTAIN = Efficiency(1.0, 1.0, 1.0)
"""The efficiency of dense steps."""


def expected(codec: str, cf: float, kind: str, confirmed: float | None = None) -> Efficiency | None:
    """Return η of a plan as simulated, between CFs interpolated in log CF; of random rounding below the first, by bits.

    Args:
        codec: Name with settings, such as ``nearest:levels=7``; the settings do not count, as ``cf`` says how strong.
        cf: Compression factor; 1 is dense.
        kind: Kind of the optimizer, as ``gravac.protocol.JobSpec.optimizer_kind`` has it. Unknown ones count as adam.
        confirmed: ρ of this training, see ``measured``; None: not known, or as simulated. It counts under SGD only, up
            to the largest CF that was simulated.

    Returns:
        None for a codec that was not simulated, and under the kinds of ``UNSIMULATED``.
    """
    if cf <= 1.0:
        return CERTAIN
    if kind in UNSIMULATED:
        return None
    table = table_of(codec, kind)
    rows = offers.of(codec).rows(table)
    times = noise_times(codec, confirmed) if table == "sgd" else 1.0
    if kind == "matrix" and table == "adam":
        times = MATRIX_TIMES
    if not rows:
        return None
    first = rows[0]
    if cf < first.cf and offers.of(codec).random:
        # A quarter of the error a bit more. In log CF, 8 bits would be taken to lose half of what 2.5 bits do.
        return _lose(_at(rows, first.cf, times), _quartered(32.0 / cf - 32.0 / first.cf))
    return _at(rows, cf, times)


def of_job(codec: str, cf: float, kind: str, ranks: int, confirmed: float | None) -> Efficiency | None:
    """Return η of a plan as simulated, for the ranks and the noise of a job.

    Args:
        codec: See ``expected``.
        cf: See ``expected``.
        kind: See ``expected``.
        ranks: World size.
        confirmed: See ``expected``.

    Returns:
        None for a codec that was not simulated.
    """
    found = expected(codec, cf, kind, confirmed)
    return None if found is None else with_ranks(found, codec, ranks, kind)


def kept(codec: str, cf: float, kind: str, ranks: int) -> Kept | None:
    """Return what a plan is expected to keep, for the record of a job; None: the codec was not simulated.

    Args:
        codec: See ``expected``.
        cf: See ``expected``.
        kind: See ``expected``.
        ranks: World size.
    """
    found = of_job(codec, cf, kind, ranks, None)
    if found is None:
        return None
    offer, table = offers.of(codec), table_of(codec, kind)
    most = 1.0 if offer.random else MOST_TIMES
    follows = (
        table == "sgd" and cf <= offer.rows(table)[-1].cf
    )  # beyond what was simulated, noise saves nothing
    return Kept(
        likely=found.likely,
        low=found.low,
        high=found.high,
        noise_times=most if follows else 0.0,
        late=counts_late(codec, kind),
        unseen=errs_more(codec, ranks, kind),
    )


def times_by_noise(most: float, confirmed: float | None) -> float:
    """Return how many times as much a plan loses by the noise of the gradient as it did in the simulations.

    Args:
        most: ``Kept.noise_times``.
        confirmed: ρ, as in ``expected``.
    """
    if confirmed is None or most <= 0.0:
        return 1.0
    return min(most, max(LEAST_TIMES, confirmed / TYPICAL_CONFIRMED))


def errs_more(codec: str, ranks: int, kind: str) -> bool:
    """Return whether a codec errs more with this number of ranks than it did in the simulations."""
    if counts_late(codec, kind):
        return ranks > SIMULATED_RANKS and table_of(codec, kind) == "low_beta"
    return ranks < SIMULATED_RANKS and offers.of(codec).averages_out


def with_ranks(found: Efficiency, codec: str, ranks: int, kind: str) -> Efficiency:
    """Return ``expected`` for a number of ranks: random errors average out over ranks, so with fewer they cost more.

    The loss counts (4/n)² times, as measured with 2 ranks (docs/efficiency.md). With more ranks than were simulated it
    is not raised, as the least that a codec loses is not known. Under Adam with a small β₁ what comes late counts
    (n/4)² times with more ranks, as measured with 8. ``gravac.optim`` knows how many ranks sent and lost no more.

    Args:
        found: As simulated.
        codec: See ``expected``.
        ranks: World size.
        kind: See ``expected``.
    """
    if not errs_more(codec, ranks, kind):
        return found
    times = SIMULATED_RANKS / max(1, ranks)
    times = max(times, 1.0 / times)
    lost = _lose(found, times * times)
    return between(lost.likely, lost.low, lost.likely)


def noise_times(codec: str, confirmed: float | None) -> float:
    """Return how many times as much a plan loses under SGD as it did in the simulations.

    Args:
        codec: See ``expected``.
        confirmed: ρ, as in ``expected``.
    """
    return times_by_noise(1.0 if offers.of(codec).random else MOST_TIMES, confirmed)


def confirmed_by(sums: GainSums) -> float | None:
    """Return ρ, the part of the mean gradient that is not noise, as a window shows it.

    Returns:
        None where the window has fewer than ``LEAST_STEPS`` steps next to a dense reference, or no gradient.
    """
    if sums.progress_steps < LEAST_STEPS or not sums.raw_mean_sq > 0.0:
        return None
    return min(1.0, max(0.0, sums.raw_dot_next / sums.raw_mean_sq))


def measured(
    sums: GainSums,
    codec: str,
    cf: float,
    kind: str,
    confirmed: float | None = None,
    ranks: int = SIMULATED_RANKS,
) -> Efficiency | None:
    """Return η of a plan in a window that sent with it.

    With a dense reference (``gravac_agent.windows.progress``) it is a weighted mean of 1 / (1 + a τ ρ + b ln 1/P) and
    what simulations showed: τ = Σ⟨residual, gradient⟩ / Σ‖gradient‖² is the backlog, P = Σ⟨moved, reference⟩ /
    Σ‖reference‖² the progress ratio, and ρ = Σ⟨ḡ, next ḡ⟩ / Σ‖ḡ‖² the part of the mean gradient that is not noise.
    The more steps, the less the simulations count.
    Of what comes late under kinds of ``LATE``, simulations alone count unless the window is worse than all of them.
    Without one, the backlog places η within the range of the simulations, and below it where the window is far worse
    than anything simulated. Under SGD ρ counts where earlier windows showed it.

    Args:
        sums: Sums of the window's steps under the plan.
        codec: See ``expected``.
        cf: See ``expected``.
        kind: See ``expected``.
        confirmed: ρ by more windows than this one; None: by this window.
        ranks: World size.

    Returns:
        None where the window shows no gradient, and under the kinds of ``UNSIMULATED``.
    """
    if cf <= 1.0:
        return CERTAIN
    if sums.steps == 0 or not sums.gradient_sq > 0.0:
        return None
    own = confirmed_by(sums)
    known = own if confirmed is None else confirmed
    table = of_job(codec, cf, kind, ranks, known)
    found = shown(sums, kind, table, known, late=counts_late(codec, kind))
    if found is None:
        return table
    if table is None:
        wide = UNCERTAIN if own is not None and sums.reference_sq > 0.0 else CREDIBLE
        return between(found.likely, found.likely - wide, found.likely + wide)
    if counts_late(codec, kind):
        share = found.likely / table.likely
        return between(found.likely, share * table.low, share * table.high)
    if own is not None and sums.reference_sq > 0.0:
        weight = TABLE_STEPS / (TABLE_STEPS + sums.progress_steps)
        likely = found.likely + weight * (table.likely - found.likely)
        return between(likely, likely - UNCERTAIN, likely + UNCERTAIN)
    return between(found.likely, table.low, table.high)


@dataclass(frozen=True, slots=True)
class Shown:
    """What steps alone show of η.

    Attributes:
        likely: Best estimate.
        steps: Steps that show it.
    """

    likely: float
    steps: int


def shown(
    sums: GainSums, kind: str, table: Efficiency | None, confirmed: float | None, *, late: bool
) -> Shown | None:
    """Return what steps show of η, without what simulations showed; see ``measured``.

    Args:
        sums: Sums of the steps under one plan.
        kind: Kind of the optimizer.
        table: What is expected of the plan; None: unknown.
        confirmed: ρ; None: as these steps show it.
        late: Whether the plan sends late what the optimizer bears late.

    Returns:
        None where they show nothing, as always under the kinds of ``UNSIMULATED``.
    """
    if kind in UNSIMULATED or sums.steps == 0 or not sums.gradient_sq > 0.0:
        return None
    followed = sums.progress_steps >= LEAST_STEPS and sums.reference_sq > 0.0
    confirmed = confirmed_by(sums) if confirmed is None else confirmed
    backlog = min(1e6, max(0.0, sums.residual_dot_gradient / sums.gradient_sq))
    progress = sums.moved_dot_reference / sums.reference_sq if sums.reference_sq > 0.0 else 0.0
    if table is not None and late:
        steps = sums.progress_steps if followed else sums.steps
        return Shown(_beyond_late(sums, followed) * table.likely, steps)
    if followed and confirmed is not None:
        counts: TableKind = "sgd" if kind == "sgd" else "adam"
        return Shown(of_progress(backlog, progress, confirmed, counts), sums.progress_steps)
    if kind == "sgd":
        lost = PER_BACKLOG if confirmed is None else PER_LATE * confirmed
        found = 1.0 / (1.0 + lost * backlog)
        if table is None:
            return Shown(found, sums.steps)
        far = max(0.0, table.low - CREDIBLE - found)
        return Shown(max(LOWEST, min(table.high, max(table.low, found)) - far), sums.steps)
    found = 1.0 / (1.0 + PER_BACKLOG_OTHERS * backlog)
    if table is None:
        return Shown(found, sums.steps)
    far = max(
        0.0, table.low - CREDIBLE - found
    )  # under Adam the backlog does not order plans within the range
    return Shown(max(LOWEST, table.likely - far), sums.steps)


def _beyond_late(sums: GainSums, followed: bool) -> float:
    """Return what a window of late gradients keeps of what was simulated: 1 unless it is worse than all of that.

    Args:
        sums: See ``measured``.
        followed: It has enough steps next to a dense reference.
    """
    if followed and sums.reference_sq > 0.0:
        return of_progress(0.0, sums.moved_dot_reference / sums.reference_sq, 0.0, "aged")
    backlog = min(1e6, sums.residual_dot_gradient / sums.gradient_sq)
    return 1.0 / (1.0 + PER_BACKLOG_OTHERS * max(0.0, backlog - AGED_BACKLOG))


def of_progress(backlog: float, progress: float, confirmed: float, table: TableKind) -> float:
    """Return 1 / (1 + a τ ρ + b ln 1/P), what a window next to a dense reference shows of η.

    Under SGD the last term is b (|ln P| - ``PROGRESS_NOISE``), where that is above 0.

    Args:
        backlog: τ, in steps.
        progress: P, the progress ratio.
        confirmed: ρ, the part of the mean gradient that is not noise.
        table: Which simulations count; of those of ``LATE`` the backlog says nothing, so it is 0 there.
    """
    late = PER_LATE * min(1e6, max(0.0, backlog)) * min(1.0, max(0.0, confirmed))
    return 1.0 / (1.0 + late + PER_LOST * progress_loss(progress, table))


def progress_loss(progress: float, table: TableKind) -> float:
    """Return ln 1/P as far as it counts.

    Args:
        progress: P, the progress ratio.
        table: Which simulations count, as ``table_of`` says it.
    """
    if table != "sgd":
        lost = log(1.0 / min(1.0, max(LOWEST, progress)))
        return max(0.0, lost - AGED_PROGRESS_LOSS) if table in LATE.values() else lost
    ratio = min(1.0 / LOWEST, max(LOWEST, progress))
    return max(0.0, log(max(ratio, 1.0 / ratio)) - PROGRESS_NOISE)


def table_of(codec: str, kind: str) -> TableKind:
    """Return which simulations count for a codec and a kind of optimizer. Arguments as in ``expected``."""
    if kind == "sgd":
        return "sgd"
    own = "matrix" if kind == "matrix" else LATE.get(kind, "adam")
    return own if offers.of(codec).rows(own) else "adam"


def counts_late(codec: str, kind: str) -> bool:
    """Return whether a codec sends late what this kind of optimizer bears late, so that windows show little of it."""
    return table_of(codec, kind) in LATE.values()


def _lose(found: Efficiency, times: float) -> Efficiency:
    """Return an efficiency whose losses are so many times as large."""
    return between(*(1.0 - times * (1.0 - value) for value in (found.likely, found.low, found.high)))


def _at(rows: tuple[EfficiencyRow, ...], cf: float, times: float) -> Efficiency:
    """Return η at a CF, where each simulated loss counts so many times."""
    weaker = EfficiencyRow(1.0, 1.0, 1.0, 1.0)
    for row in rows:
        if cf <= row.cf:
            share = log(cf / weaker.cf) / log(row.cf / weaker.cf)
            pairs = ((weaker.likely, row.likely), (weaker.low, row.low), (weaker.high, row.high))
            return _lose(between(*(a + share * (b - a) for a, b in pairs)), times)
        weaker = row
    fading = math.sqrt(weaker.cf / cf)  # stronger than anything simulated
    last = _lose(Efficiency(weaker.likely, weaker.low, weaker.high), times)
    return between(fading * last.likely, fading * fading * last.low, fading * last.high)


def _quartered(bits: float) -> float:
    """Return about 4^-bits, between whole numbers on a line: the same bits everywhere."""
    whole = int(bits)
    return (1.0 - 0.75 * (bits - whole)) * 0.25**whole


def between(likely: float, low: float, high: float) -> Efficiency:
    """Return an estimate within the range that estimates have, in order."""
    likely = min(1.0, max(LOWEST, likely))
    return Efficiency(likely, min(likely, max(LOWEST, low)), max(likely, min(1.0, high)))


def log(value: float) -> float:
    """Return the natural logarithm of a number from 1 on, the same bits everywhere: ``math.log`` is the platform's."""
    halvings = 0
    while value > 2.0:
        value, halvings = value / 2.0, halvings + 1
    z = (value - 1.0) / (value + 1.0)
    square, power, total = z * z, z, 0.0
    for odd in range(1, 40, 2):  # ln x = 2 (z + z³/3 + …), z at most 1/3
        total += power / odd
        power *= square
    return halvings * _LOG_2 + 2.0 * total
