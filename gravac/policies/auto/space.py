"""The plan space: the plans that a job may choose from, and what each of them costs there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

from gravac import offers
from gravac.policies.base import DENSE, Plan
from gravac.protocol import JobSpec, PlanCost
from gravac.signals import efficiency
from gravac.signals.efficiency import Efficiency
from gravac.wording import plan_in_words

DEFAULT_COMPRESSOR = "topk+bf16"
"""The agent's default. Another one was the user's choice, and limits the space to its strengths."""
DEFAULT_MEMORY = "residual"
"""The agent's default. The rule leaves the job's memory as it is, and its plans were simulated with this one."""
CODING = ",coding=huffman"
"""Changes the bytes of a codec and not its values, so that the CF of a plan stays that of its settings without it."""
OWN_STRENGTHS = (2.0, 4.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 1000.0)
"""CFs of a compressor that the user chose. [CF; chosen]"""
SAME = 0.99
"""Plans of one codec whose bytes differ by less are one plan: the codec has no size between them. [times; chosen]"""
UNCOMPRESSED = frozenset({"dense", "none"})


def members() -> Mapping[str, frozenset[str]]:
    """Return what the rule uses when a user chooses nothing: names of codecs and memories, by kind."""
    texts = ("dense", *(codec for codec, _ in defaults("adam-aged") if codec is not None))
    codecs = (part.partition(":")[0] for text in texts for part in text.split("+"))
    return {"compressor": frozenset(codecs), "memory": frozenset({DEFAULT_MEMORY})}


@cache
def defaults(kind: str = "other") -> tuple[Plan, ...]:
    """Return the plans that the rule uses when a user chooses nothing, of each codec the mildest first.

    Codecs of few sizes come before those that take any CF, and plans with Huffman coding, which pays on slow links,
    after those without.

    Args:
        kind: Of the optimizer.
    """
    late = kind in efficiency.LATE
    few, any_cf = [], []
    for name, offer in sorted(
        offers.own().items(), key=lambda item: min(item[1].plans.values(), default=0.0)
    ):
        few += [Plan(f"{name}:{settings}".rstrip(":"), cf) for settings, cf in offer.plans.items()]
        stacks = {f"{name}+{values}": stack for values, stack in offer.stacks.items()}
        any_cf += [
            Plan(text, cf)
            for text, each in {name: offer, **stacks}.items()
            for cf in (*each.strengths, *(each.late_strengths if late else ()))
        ]
    return *sorted(few, key=lambda plan: str(plan.codec).endswith(CODING)), *any_cf


def size_of(codec: str) -> float | None:
    """Return the CF of the plan of a codec that has one size, whatever its coding; None: it takes any CF."""
    name, _, settings = codec.removesuffix(CODING).partition(":")
    offer = offers.of(name)
    return offer.plans.get(settings) or offer.listed.get(settings)


@lru_cache(maxsize=256)
def read(text: str) -> Plan:
    """Return the plan of a text such as ``nearest:levels=7`` or ``topk+bf16@100``.

    Raises:
        ValueError: The CF is missing or not above 1.
    """
    codec, at, strength = text.partition("@")
    codec = codec.strip().replace(";", ",")
    if not at:
        size = size_of(codec)
        if size is None:
            raise ValueError(f"{text!r} needs its compression factor: write {text}@10")
        return Plan(codec, size)
    try:
        cf = float(strength)
    except ValueError:
        cf = 0.0
    if not codec or not 1.0 < cf <= 1e9:
        raise ValueError(f"{text!r} must be a codec with a CF above 1, such as topk+bf16@100")
    return Plan(codec, cf)


def plans(listed: tuple[str, ...], compressor: str, kind: str = "other") -> tuple[Plan, ...]:
    """Return the plans of a job, dense first.

    Args:
        listed: Setting ``plans``.
        compressor: The job's, which plans name None.
        kind: Of the optimizer.
    """
    if listed:
        chosen = tuple(read(text) for text in listed)
    elif compressor == DEFAULT_COMPRESSOR:
        chosen = defaults(kind)
    elif compressor in UNCOMPRESSED:
        chosen = ()
    elif (size := size_of(compressor)) is not None:
        chosen = (Plan(compressor, size),)
    else:
        chosen = tuple(Plan(compressor, cf) for cf in OWN_STRENGTHS)
    own = (Plan(None if codec == compressor else codec, cf) for codec, cf in chosen)
    return DENSE, *own


@dataclass(frozen=True)
class Space:
    """The plans of one job.

    Attributes:
        costs: Of each plan, dense first.
        kind: Of the optimizer.
        elements: Of the gradient; 0: not known.
        ranks: World size.
        compressor: The job's, which plans name None.
        limited: The user listed the plans or chose the compressor, so that codecs of unknown efficiency are tried.
        remembers: The job has an error memory.
    """

    costs: Mapping[Plan, PlanCost]
    kind: str = "other"
    elements: int = 0
    ranks: int = 2
    compressor: str = DEFAULT_COMPRESSOR
    limited: bool = False
    remembers: bool = True
    plans: tuple[Plan, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", tuple(self.costs))

    def codec(self, plan: Plan) -> str:
        """Return the name of the codec that a plan sends with."""
        return self.compressor if plan.codec is None else plan.codec

    def expected(self, plan: Plan, confirmed: float | None) -> Efficiency | None:
        """Return η of a plan as simulated, for the ranks and the optimizer of the job; None: not simulated.

        Args:
            plan: The plan.
            confirmed: ρ of the job, as in ``efficiency.expected``.
        """
        return efficiency.of_job(self.codec(plan), plan.cf, self.kind, self.ranks, confirmed)

    def values(self, plan: Plan) -> Plan:
        """Return the plan that sends the same values without Huffman coding: it keeps as much of the progress."""
        return Plan(self.codec(plan).removesuffix(CODING), plan.cf)

    def label(self, plan: Plan) -> str:
        """Return a plan as messages name it: in plain words, within quotes where they are several."""
        words = plan_in_words(self.codec(plan), plan.cf)
        return f"“{words}”" if ", " in words else words

    def fewer(self, plan: Plan) -> float:
        """Return how many times fewer bytes a plan puts on a link than dense."""
        return self.costs[DENSE].link_bytes / max(1e-9, self.costs[plan].link_bytes)


def unfitted(listed: tuple[str, ...]) -> Space:
    """Return the space before the job is known: bytes by CF alone."""
    return Space(
        {plan: _nominal(plan, 0) for plan in plans(listed, DEFAULT_COMPRESSOR)}, limited=bool(listed)
    )


def of_job(listed: tuple[str, ...], spec: JobSpec) -> Space:
    """Return the space of a job. Plans whose cost the job does not state are left out, if it states any."""
    kind = spec.optimizer_kind
    wanted = tuple(Plan(codec, spec.reached(codec, cf)) for codec, cf in plans(listed, spec.compressor, kind))
    if spec.world_size == 1:
        wanted = (DENSE,)
    stated = {Plan(cost.codec, cost.cf): cost for cost in spec.plans}
    elements = spec.model.elements
    costs: dict[Plan, PlanCost] = {}
    for plan in wanted:
        cost = stated.get(plan)
        if cost is None and (plan == DENSE or not stated):
            cost = _nominal(plan, elements)
        if cost is not None and not _repeats(plan, cost, costs):
            costs[plan] = cost
    return Space(
        costs,
        kind=kind,
        elements=elements,
        ranks=spec.world_size,
        compressor=spec.compressor,
        limited=bool(listed) or spec.compressor != DEFAULT_COMPRESSOR,
        remembers=spec.memory.partition(":")[0] != "none",
    )


def _nominal(plan: Plan, elements: int) -> PlanCost:
    nbytes = 4 * max(1, elements) / plan.cf
    return PlanCost(
        codec=plan.codec, cf=plan.cf, payload_bytes=max(1, round(nbytes)), link_bytes=nbytes, messages=0.0
    )


def _repeats(plan: Plan, cost: PlanCost, costs: Mapping[Plan, PlanCost]) -> bool:
    """Return whether a weaker plan of the same codec sends as little."""
    return any(
        other.codec == plan.codec and other.cf > 1.0 and cost.link_bytes >= SAME * each.link_bytes
        for other, each in costs.items()
    )
