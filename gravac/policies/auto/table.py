"""The plan table: one row for each plan of a job, with all that is known of it before the first step.

It is made once, from the job's record alone, so a trace needs no codec to be replayed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gravac import offers
from gravac.codec_text import split_settings, uncoded
from gravac.policies.auto.plans import DEFAULT_COMPRESSOR, RIVAL, plans
from gravac.policies.base import DENSE, Plan
from gravac.protocol import JobSpec, Kept, PlanCost
from gravac.signals import efficiency
from gravac.signals.efficiency import Efficiency
from gravac.wording import plan_in_words

SAME = 0.99
"""Plans of one codec whose bytes differ by less are one plan: the codec has no size between them. [times; chosen]"""
MOST_LOST = 0.04
"""Largest loss of η of a plan that is held, whatever the bound. Of 15 simulated jobs of image nets under AdamW that
held 7 levels, which lose 6 to 9 % there, 14 did not reach the target loss in their planned steps, and 10 of 12
that held 15 levels did not, either. [share; simulated]"""
FILLS, FILL_LOSS = 5 / 6, 150.0
"""A young training, whose gradients agree from step to step, loses more by delays while an error memory fills, which
keeps one element in CF: at first (CF / 150)² of a step's progress, and nothing after 5/6 CF steps, when what came late
catches up (lab/benchmarks/young.py: CF 36 is 2.4 steps behind at step 30, and ahead from step 40 on). [times, CF;
simulated]"""


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """One plan.

    Attributes:
        plan: Name of the plan in decisions: a codec of None is the job's compressor.
        label: Name in plain words, within quotes where they are several.
        family: Codecs whose coding takes as much longer or shorter than expected.
        base: Codec without settings; stronger plans of one lose no less.
        values: Codec without its coding, which changes no value.
        payload_bytes: Bytes handed to collectives in a step.
        link_bytes: Bytes put on a rank's link in a step.
        lighter: How many times fewer of them it puts there than dense.
        exchange: Seconds of the exchange on the network as measured at the start; None: it was not.
        size: ``link_bytes``, and what the link carries during the latency of the messages, where that is known.
        coding: Seconds to encode and decode, as measured when the job started, or else elsewhere.
        kept: Expected efficiency; None: unknown.
    """

    plan: Plan
    label: str
    family: str
    base: str
    values: str
    payload_bytes: int
    link_bytes: float
    lighter: float
    exchange: float | None
    size: float
    coding: float
    kept: Kept | None

    @property
    def late(self) -> bool:
        """Whether it sends late what the optimizer bears late."""
        return self.kept is not None and self.kept.late

    @property
    def random(self) -> bool:
        """Whether it rounds at random, which delays nothing."""
        return self.kept is not None and self.kept.noise_times == 1.0

    def expected(self, confirmed: float | None, step: int) -> Efficiency | None:
        """Return η of the plan as simulated; None: unknown.

        Args:
            confirmed: ρ of the job, the part of the mean gradient that is not noise; None: as in simulations.
            step: Step of the training.
        """
        kept = self.kept
        if kept is None:
            return None
        if kept.late:
            young = max(0.0, 1.0 - step / (FILLS * self.plan.cf))
            lost = young * (self.plan.cf / FILL_LOSS) * (self.plan.cf / FILL_LOSS)
            return efficiency.between(kept.likely - lost, kept.low - lost, kept.high)
        times = efficiency.times_by_noise(kept.noise_times, confirmed)
        return efficiency.between(
            *(1.0 - times * (1.0 - each) for each in (kept.likely, kept.low, kept.high))
        )


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The plans of one job.

    Attributes:
        rows: Rows, dense first.
        kind: Kind of the optimizer.
        telling: Whether its windows show η and the noise of the gradient without a dense reference, as under SGD.
        ranks: World size.
        accepted: Largest loss of η of a plan that may be held.
        limited: Whether the user listed the plans or chose the compressor, so that codecs of unknown η are tried.
        rival: What torch's own bf16 hook sends, where the job is on a device; None: it is not, or may not send that.
        weakest_first: The rows by CF.
    """

    rows: tuple[PlanFacts, ...]
    kind: str
    telling: bool
    ranks: int
    accepted: float
    limited: bool
    rival: Plan | None = None
    by_plan: dict[Plan, PlanFacts] = field(init=False, compare=False)
    weakest_first: tuple[PlanFacts, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weakest_first", tuple(sorted(self.rows, key=lambda row: row.plan.cf)))
        object.__setattr__(self, "by_plan", {row.plan: row for row in self.rows})

    @property
    def dense(self) -> PlanFacts:
        """The first row."""
        return self.rows[0]

    def wire_cf(self, row: PlanFacts) -> float:
        """Return how many times fewer bytes a plan hands to collectives than dense does."""
        return self.dense.payload_bytes / max(1, row.payload_bytes)


def table_of(listed: tuple[str, ...], bound: float, spec: JobSpec) -> PlanTable:
    """Return the table of a job. Plans whose cost the job does not state are left out, if it states any.

    Args:
        listed: Plans that the user listed; empty: those of the codecs.
        bound: Largest loss of η that the user accepts.
        spec: The job.
    """
    kind, compressor = spec.optimizer_kind, spec.compressor
    wanted = [Plan(codec, spec.reached(codec, cf)) for codec, cf in plans(listed, compressor, kind)]
    if spec.world_size == 1:
        wanted = [DENSE]
    limited = bool(listed) or compressor != DEFAULT_COMPRESSOR
    remembers = spec.memory.partition(":")[0] != "none"
    stated = {Plan(cost.codec, cost.cf): cost for cost in spec.plans}
    rows = _rows(wanted, stated, kind, compressor, spec.model.elements, spec.world_size, remembers)
    table = _table(rows, kind, spec.world_size, bound, limited)
    if not any(cost.host_seconds for cost in spec.plans):
        return table
    rival = next((row.plan for row in rows if (row.plan.codec or compressor) == RIVAL), None)
    return replace(table, rival=rival)


def unfitted(listed: tuple[str, ...], bound: float) -> PlanTable:
    """Return the table before the job is known: bytes by CF alone. Arguments as in ``table_of``."""
    rows = _rows(plans(listed, DEFAULT_COMPRESSOR), {}, "other", DEFAULT_COMPRESSOR, 0, 2, True)
    return _table(rows, "other", 2, bound, bool(listed))


def _table(rows: tuple[PlanFacts, ...], kind: str, ranks: int, bound: float, limited: bool) -> PlanTable:
    accepted = bound if limited else min(bound, MOST_LOST)
    return PlanTable(rows, kind, kind in efficiency.TELLING, ranks, accepted, limited)


def _rows(
    wanted: Iterable[Plan],
    stated: Mapping[Plan, PlanCost],
    kind: str,
    compressor: str,
    elements: int,
    ranks: int,
    remembers: bool,
) -> tuple[PlanFacts, ...]:
    costs: dict[Plan, PlanCost] = {}
    for plan in wanted:
        cost = stated.get(plan)
        if cost is None and (plan == DENSE or not stated):
            cost = nominal(plan, elements)
        if cost is not None and not _repeats(plan, cost, costs):
            costs[plan] = cost
    dense = costs[DENSE]
    rows = []
    for plan, cost in costs.items():
        codec = "dense" if plan == DENSE else plan.codec or compressor
        words = plan_in_words(codec, plan.cf)
        known = cost.seconds is not None and dense.seconds
        coding, kept = cost.coding_seconds, cost.kept
        if plan != DENSE and coding is None:  # of a job that states it not
            payloads = ranks if cost.decoded is None else cost.decoded
            coding = offers.coding_seconds(codec, plan.cf, elements, payloads)
        if plan != DENSE and kept is None and (remembers or offers.of(codec).lossless):
            kept = efficiency.kept(codec, plan.cf, kind, ranks)
        rows.append(
            PlanFacts(
                plan=plan,
                label=f"“{words}”" if ", " in words else words,
                family=offers.coding_family(codec),
                base=split_settings(codec)[0],
                values=uncoded(codec),
                payload_bytes=cost.payload_bytes,
                link_bytes=max(1e-9, cost.link_bytes),
                lighter=dense.link_bytes / max(1e-9, cost.link_bytes),
                exchange=cost.seconds,
                size=max(1e-9, (cost.seconds or 0.0) * dense.link_bytes / (dense.seconds or 1.0))
                if known
                else max(1e-9, cost.link_bytes),
                coding=max(coding or 0.0, cost.host_seconds or 0.0),  # at the same time, on a device
                kept=kept,
            )
        )
    return tuple(rows)


def nominal(plan: Plan, elements: int) -> PlanCost:
    """Return the cost of a plan of which only the CF is known."""
    nbytes = 4 * max(1, elements) / plan.cf
    return PlanCost(
        codec=plan.codec, cf=plan.cf, payload_bytes=max(1, round(nbytes)), link_bytes=nbytes, messages=0.0
    )


def _repeats(plan: Plan, cost: PlanCost, costs: dict[Plan, PlanCost]) -> bool:
    """Return whether a weaker plan of the same codec sends as little."""
    return any(
        other.codec == plan.codec and 1.0 < other.cf < plan.cf and cost.link_bytes >= SAME * each.link_bytes
        for other, each in costs.items()
    )
