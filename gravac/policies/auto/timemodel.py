"""Seconds of a step under plans that were not tried, from those that were.

    step = own + coding + exposed,  exposed = max(0, waiting + size · seconds per byte)

``size`` is the bytes on the link. Where the network was measured at the start, the latency of messages is added, as the
bytes that the link carries in that time.

``own`` is the step without coding and without the wait for the network. ``waiting`` is the wait that no plan avoids,
such as for slower ranks; below 0 it is what hides behind backward. Both terms need two plans of different size. From
one plan, the seconds per byte are those of the network as measured at the start. Where it was not, ``waiting`` is next
to 0, so that the wait of a plan that sends less is an upper bound. Arithmetic is
+ - * / and square roots only, so that a replay decides the same.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gravac import offers
from gravac.policies.auto.settings import Coding, Seen
from gravac.policies.auto.space import Space
from gravac.policies.base import DENSE, Plan

MEMORY_NS = 1.5
"""Error memory, for each element: adding the residual and keeping the new one. [ns; measured]"""
HUFFMAN_NS = (3.2, 2.6)
"""Encoding and decoding more where codes are Huffman coded, for each byte that they take without it. [ns; measured]"""
MESSAGE_SECONDS = 5e-5
"""Latency of a message on an unknown network. [s; chosen]"""
CLEARLY = 3.0
"""A plan is tried before step times are known if it saves this many times its coding time. [times; chosen]"""
LEAST_APART = 1.4
"""Ratio of link bytes from which two plans determine the line. [times; chosen]"""
MOSTLY_HIDDEN = 0.3
"""An exchange hides nearly whole if its wait is less than this share of what can hide. [share; chosen]"""
LEAST_OWN = 0.02
"""Share of a step that is its own work, at least. [share; chosen]"""
CARRIED = (1 / 3, 3.0)
"""Range in which the coding time of one codec, relative to the prior, is expected of the others, too.
[times; chosen]"""


def family(codec: str) -> str:
    """Return the name that coding times are kept under."""
    name = codec.partition("+")[0].partition(":")[0]
    return f"{name}-huffman" if "coding=huffman" in codec else name


def pass_ns(codec: str, cf: float, payloads: int) -> tuple[float, float]:
    """Return what encoding and decoding take for each element, in nanoseconds.

    Args:
        codec: Name with settings.
        cf: Of the plan, without Huffman coding.
        payloads: That are decoded. A rank keeps the codes of its own, so that one needs no Huffman decoding.
    """
    offer = offers.of(codec.partition("+")[0])
    encode, decode = offer.encode_ns, payloads * offer.decode_ns
    if "coding=huffman" in codec:
        code_bytes = 4 / cf  # of a float32
        encode += HUFFMAN_NS[0] * code_bytes
        decode += HUFFMAN_NS[1] * code_bytes * max(0, payloads - 1)
    return encode, decode


def prior_coding(space: Space, plan: Plan) -> float:
    """Return the seconds to encode and decode one gradient, as measured elsewhere; 0 for dense."""
    if plan.cf == 1.0:
        return 0.0
    codec, payloads = space.codec(plan), space.costs[plan].decoded
    if payloads is None:
        payloads = space.ranks
    root = math.sqrt(plan.cf)
    kept = 1.0 / (root * math.sqrt(root))  # CF^-0.75
    encode, decode = pass_ns(codec, plan.cf, payloads)
    encode_kept, decode_kept = offers.of(codec.partition("+")[0]).kept_ns
    each = MEMORY_NS + encode + decode + (encode_kept + payloads * decode_kept) * kept
    return space.elements * each * 1e-9


@dataclass(frozen=True, slots=True)
class PlanTimeModel:
    """Terms of the formula.

    Attributes:
        space: The plans and their bytes.
        codings: Measured coding times, relative to the prior.
        own: Seconds.
        waiting: Seconds; below 0: hidden.
        per_byte: Seconds.
        determined: Whether two plans determined the line.
    """

    space: Space
    codings: tuple[Coding, ...]
    own: float
    waiting: float
    per_byte: float
    determined: bool

    def coding(self, plan: Plan) -> float:
        """Return the seconds to encode and decode under a plan."""
        return coding(self.space, self.codings, plan)

    def exposed(self, plan: Plan) -> float:
        """Return the seconds that a step waits for the network."""
        return max(0.0, self.waiting + self.per_byte * _size(self.space, plan))

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a step."""
        return max(1e-9, self.own + self.coding(plan) + self.exposed(plan))

    def least_seconds(self, plan: Plan) -> float:
        """Return the seconds of a step if coding takes half of what is expected and the whole exchange is hidden."""
        return max(1e-9, self.own + self.coding(plan) / 2)


def coding(space: Space, codings: Sequence[Coding], plan: Plan) -> float:
    """Return the seconds to encode and decode under a plan, corrected by what was measured."""
    prior = prior_coding(space, plan)
    if not codings or prior == 0.0:
        return prior
    name = family(space.codec(plan))
    exact = next((each.ratio for each in codings if each.family == name), None)
    return prior * (min(CARRIED[1], max(CARRIED[0], codings[-1].ratio)) if exact is None else exact)


def fit(
    space: Space,
    seen: Sequence[Seen],
    codings: tuple[Coding, ...],
    newest: Seen,
    waiting: float | None,
    per_byte: float | None,
) -> PlanTimeModel:
    """Fit the terms.

    Args:
        space: The plans.
        seen: Fresh measurements.
        codings: Measured coding times.
        newest: The measurement that counts most, one of ``seen``.
        waiting: As fitted to two plans before the step time last moved; None: never.
        per_byte: The same.
    """
    dense = next((row for row in seen if row.cf == 1.0), None)
    base = newest if dense is None else dense
    own = base.step_seconds - base.exposed_seconds - coding(space, codings, base.plan)
    own = max(own, LEAST_OWN * base.step_seconds)
    ordered = sorted(seen, key=lambda each: _size(space, each.plan))
    small, large = ordered[0], ordered[-1]
    if _size(space, large.plan) > LEAST_APART * _size(space, small.plan):
        span = _size(space, large.plan) - _size(space, small.plan)
        slope = max(0.0, large.exposed_seconds - small.exposed_seconds) / span
        rest = small.exposed_seconds - slope * _size(space, small.plan)
        return PlanTimeModel(space, codings, own, rest, min(1e9, slope), determined=True)
    nbytes, exposed = _size(space, newest.plan), newest.exposed_seconds
    probed = _probed(space) if waiting is None else None
    if probed is not None:
        return PlanTimeModel(space, codings, own, exposed - probed * nbytes, probed, determined=False)
    messages = space.costs[newest.plan].messages * MESSAGE_SECONDS
    rest = min(messages, exposed / 2) if waiting is None else min(waiting, exposed)
    slope = max(0.0, exposed - rest) / nbytes
    if per_byte is not None and hides(rest, exposed):  # the bytes take no longer than what hides
        slope = min(per_byte, slope)
    return PlanTimeModel(space, codings, own, rest, min(1e9, slope), determined=False)


def clear_start(
    space: Space, plans: Sequence[Plan], efficiency: Callable[[Plan], float | None]
) -> Plan | None:
    """Return the plan to try before any step time is known; None where that may not pay.

    It pays where the exchange, as measured at the start, gets shorter by three times what coding takes, whatever else a
    step does. Of such plans the one that saves most counts, weighted by what its steps are worth.

    Args:
        space: The plans and their costs.
        plans: To choose from.
        efficiency: Of a plan; None: not known.
    """
    dense = space.costs[DENSE].seconds
    best: tuple[float, Plan] | None = None
    for plan in plans:
        seconds, worth = space.costs[plan].seconds, efficiency(plan)
        if dense is None or seconds is None or worth is None or plan == DENSE:
            continue
        took = prior_coding(space, plan)
        saved = worth * (dense - seconds - took)
        if dense - seconds > CLEARLY * took and (best is None or saved > best[0]):
            best = saved, plan
    return None if best is None else best[1]


def hides(waiting: float | None, exposed: float) -> bool:
    """Return whether an exchange hides nearly whole, so that its wait says little of its length."""
    return waiting is not None and exposed < MOSTLY_HIDDEN * -waiting


def _probed(space: Space) -> float | None:
    """Return the seconds per byte by the network as measured at the start; None: it was not."""
    cost = space.costs[DENSE]
    return None if cost.seconds is None else min(1e9, cost.seconds / max(1e-9, cost.link_bytes))


def _size(space: Space, plan: Plan) -> float:
    """Return the bytes on the link, plus those that it carries during the latency of messages, where that is known."""
    cost, dense = space.costs[plan], space.costs[DENSE]
    if cost.seconds is None or not dense.seconds:
        return max(1e-9, cost.link_bytes)
    return max(1e-9, cost.seconds * dense.link_bytes / dense.seconds)
