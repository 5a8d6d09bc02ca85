"""Base of every record, the version of all records, and the types of their fields."""

import math
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

SCHEMA = 1
"""Version of these records. A reader refuses any other.

It grows with every field, even one with a default. Records take no unknown fields, so an older reader would otherwise
report the field instead of the newer version.
"""


class Record(BaseModel):
    """Base of every wire record."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def _finite(settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse NaN and infinity at any depth. ``allow_inf_nan`` does not reach into ``JsonValue``, which writes null."""
    for name, value in settings.items():
        nodes = [value]
        while nodes:
            node = nodes.pop()
            if isinstance(node, float) and not math.isfinite(node):
                raise ValueError(f"setting {name!r} holds {node}; JSON has only finite numbers")
            nodes += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return settings


Settings = Annotated[dict[str, JsonValue], AfterValidator(_finite)]
"""Settings by name: any JSON without NaN or infinity."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")]
"""Name of a job, or of a start of its trainer."""
NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, a dot not first"
"""What a ``Name`` is, for people."""
Choice = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._:=,/+-]{0,199}$")]
"""A codec or memory by name, with settings behind a colon: ``conef:bits=4``."""
Text = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=2**53)]
WindowSteps = Annotated[int, Field(ge=1, le=1_000_000)]
"""Steps between two decisions."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Bytes = Annotated[int, Field(ge=0, le=2**63)]
LARGEST_CF = 1e9
CompressionFactor = Annotated[float, Field(ge=1, le=LARGEST_CF)]
"""Elements in / elements kept; 1 is dense."""
Energy = Annotated[float, Field(ge=0, le=1e300)]
"""A squared norm, summed over elements, ranks and steps."""
LearningRate = Annotated[float, Field(ge=0, le=1e15)]
Ratio = Annotated[float, Field(ge=0, le=1 + 1e-6)]
