"""The plans that a job may choose from, by name."""

from collections.abc import Mapping
from functools import cache, lru_cache

from gravac import offers
from gravac.codec_text import is_coded, name_of, parts_of, split_plan, split_settings, uncoded
from gravac.policies.base import DENSE, Plan
from gravac.protocol import LARGEST_CF
from gravac.signals import efficiency

DEFAULT_COMPRESSOR = "topk+bf16"
"""The agent's default. Another one was the user's choice, and limits the space to its strengths."""
DEFAULT_MEMORY = "residual"
"""The agent's default. The rule leaves the job's memory as it is, and its plans were simulated with this one."""
OWN_STRENGTHS = (2.0, 4.0, 10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 1000.0)
"""CFs of a compressor that the user chose. [CF; chosen]"""
RIVAL = "bf16"
"""Codec that sends what torch's own bf16 hook does."""
UNCOMPRESSED = frozenset({"dense", "none"})


def members() -> Mapping[str, frozenset[str]]:
    """Return what the rule uses when a user chooses nothing: names of codecs and memories, by kind."""
    texts = ("dense", *(codec for codec, _ in defaults("adam-aged") if codec is not None))
    codecs = (name_of(part) for text in texts for part in parts_of(text))
    return {"compressor": frozenset(codecs), "memory": frozenset({DEFAULT_MEMORY})}


@cache
def defaults(kind: str = "other") -> tuple[Plan, ...]:
    """Return the plans that the rule uses when a user chooses nothing, of each codec the mildest first.

    Codecs of few sizes come before those that take any CF, and plans with Huffman coding, which pays on slow links,
    after those without.

    Args:
        kind: Kind of the optimizer.
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
    return *sorted(few, key=lambda plan: is_coded(str(plan.codec))), *any_cf


def size_of(codec: str) -> float | None:
    """Return the CF of the plan of a codec that has one size, whatever its coding; None: it takes any CF."""
    name, settings = split_settings(uncoded(codec))
    offer = offers.of(name)
    return offer.plans.get(settings) or offer.listed.get(settings)


@lru_cache(maxsize=256)
def read(text: str) -> Plan:
    """Return the plan of a text such as ``nearest:levels=7`` or ``topk+bf16@100``.

    Raises:
        ValueError: The CF is missing or not above 1.
    """
    codec, strength = split_plan(text)
    if strength is None:
        size = size_of(codec)
        if size is None:
            raise ValueError(f"{text!r} needs its compression factor: write {text}@10")
        return Plan(codec, size)
    try:
        cf = float(strength)
    except ValueError:
        cf = 0.0
    if not codec or not 1.0 < cf <= LARGEST_CF:
        raise ValueError(f"{text!r} must be a codec with a CF above 1, such as topk+bf16@100")
    return Plan(codec, cf)


def plans(listed: tuple[str, ...], compressor: str, kind: str = "other") -> tuple[Plan, ...]:
    """Return the plans of a job, dense first.

    Args:
        listed: Setting ``plans``.
        compressor: The job's compressor, which plans name None.
        kind: Kind of the optimizer.
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
