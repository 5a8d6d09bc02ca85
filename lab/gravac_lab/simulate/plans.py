"""The plans of a simulation, by name: dense, alone, or a codec at a strength with an error memory."""

from dataclasses import dataclass

from gravac import aggregators, memories
from gravac.collectives import AUTO
from gravac.protocol import LARGEST_CF
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_lab.tournament.rows import ACCORDION, LGRECO, REPEAT

FORMS = (
    "dense, alone, or CODEC@CF, with an error memory as CODEC@CF/MEMORY, and a collective as "
    "CODEC@CF/MEMORY/COLLECTIVE"
)
MOST_REPEATS = 1000
"""Highest number of a repetition of dense."""


class PlanError(ValueError):
    """The plan does not exist; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class StaticPlan:
    """One way of sending, for a whole run.

    Attributes:
        text: Text as it was written.
        compressor: Codec or aggregator; empty for ``dense`` and ``alone``.
        cf: Compression factor asked for; 1 for ``dense``.
        memory: Error memory.
        collective: Collective that exchanges payloads; ``auto``: those that cannot be summed are gathered.
        repeat: Number of a repetition of ``dense`` with rounding errors, which shows by how much two trainings differ
            that differ in nothing else; 0: no repetition.
    """

    text: str
    compressor: str
    cf: float
    memory: str
    collective: str = AUTO
    repeat: int = 0

    @property
    def alone(self) -> bool:
        """Whether the ranks train without any communication."""
        return self.text == "alone"

    def plan(self) -> StepPlan:
        """Return what the ranks' channels are given."""
        return StepPlan(Directive(0, "hold", self.cf, self.cf, 0.0), self.cf)


def parse(text: str) -> StaticPlan:
    """Parse a plan such as ``dense``, ``dense:repeat=1``, ``topk+bf16@100`` or ``nearest:levels=7@10/residual``.

    A collective is named last: ``nearest:levels=7@10/residual/compressed-all-reduce``.

    Raises:
        PlanError: A part is not valid; names it.
    """
    if text in ("dense", "alone"):
        return StaticPlan(text, "", 1.0, "residual")
    if text.startswith(REPEAT):
        number = text.removeprefix(REPEAT)
        if not number.isdecimal() or not 1 <= int(number) <= MOST_REPEATS:
            raise PlanError(f"plan {text!r}: repeat={number} must be a number from 1 to {MOST_REPEATS}")
        return StaticPlan(f"{REPEAT}{int(number)}", "", 1.0, "residual", repeat=int(number))
    if (kind := text.partition(":")[0]) in (ACCORDION, LGRECO):
        raise PlanError(
            f"plan {text!r}: {kind} is no plan of one strength; run it with gravac bench tournament"
        )
    sent, _, rest = text.partition("/")
    memory, _, collective = rest.partition("/")
    codec, at, number = sent.rpartition("@")
    try:
        if not at:
            raise PlanError(f"it names no strength: write {text}@10, or one of {FORMS}")
        try:
            cf = float(number)
        except ValueError:
            raise PlanError(f"the strength {number!r} is no number: write one of {FORMS}") from None
        if not 1.0 < cf <= LARGEST_CF:
            raise PlanError(
                f"the strength {cf:g} must be above 1 and at most {LARGEST_CF:g}; write dense for 1"
            )
        aggregators.parse(codec, collective or AUTO)
        memories.build(memory or "residual")
    except ValueError as error:
        raise PlanError(f"plan {text!r}: {error}") from None
    return StaticPlan(text, codec, cf, memory or "residual", collective or AUTO)
