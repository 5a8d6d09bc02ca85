"""What operators may order: records like those of ``gravac.protocol``. What orders do: ``gravac.policies.steering``."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gravac.protocol.fields import CompressionFactor, Count, Record

Actor = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$")]
"""Whoever gives an order, as they call themselves: a name or an address, not a proof of identity."""


class Order(Record):
    """What an operator wants. Body of ``PUT /v1/jobs/{job}/override``.

    pin: send ``cf`` (and no other action takes one), whatever its gain. dense: send everything. pause: hold what the
    policy had settled on, or its minimum while it explores; epsilon still guards it. resume: the policy decides again,
    from where it was.
    """

    action: Literal["pin", "dense", "pause", "resume"]  # what is ordered
    cf: CompressionFactor | None = None  # to pin; null with any other action
    actor: Actor  # whoever ordered it
    note: Annotated[str, Field(max_length=300)] = ""  # why, in their own words

    @model_validator(mode="after")
    def _cf_with_pin(self) -> Self:
        if (self.cf is None) == (self.action == "pin"):
            raise ValueError("cf must be given with pin, and with nothing else")
        return self


class Override(Order):
    """An order that was taken, as journaled. See ``gravac.policies.steering``.

    ``epoch``: of the decision in force when it was given, which the operator had seen.
    """

    epoch: Count  # of the decision that they had seen
