"""Offers: what a codec states of itself to policy ``auto``: its plans, what they cost, and what they keep.

An offer stands in the codec's class as ``offer = Offer(…)``. The controller runs without torch and imports no codecs,
so those of gravac's own codecs also stand in ``offers.json``, which ``python -m tools.pages.offers`` writes. What a
job's plans cost and keep is in its record, so of a plugin's codec only the ranks need to know the offer.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gravac.codec_text import is_coded, name_of, selector_of, values_of

TableKind = Literal["sgd", "adam", "aged", "low_beta", "matrix"]
"""Which simulations count: of SGD, Adam, ``gravac.optim``, Adam with a small β₁, optimizers of whole matrices."""
Kept = Mapping[float, tuple[float, float, float]]
"""Statistical efficiency by CF: of the task that bears it worst, likely, of the task that bears it best."""


class EfficiencyRow(NamedTuple):
    """Statistical efficiency at one CF. ``likely`` is what is expected of a job."""

    cf: float
    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one codec states of itself. What it does not state is unknown, and then ``auto`` is careful.

    Efficiencies are those of simulated trainings with error feedback and 4 ranks: steps that dense training needs,
    divided by those that the plan needs, to the same held-out loss. ``python -m tools.pages.efficiency`` prints them as
    they are written here. ``auto`` chooses a codec without any only where a user lists it, or chooses it as compressor.
    """

    plans: Mapping[str, float] = field(default_factory=dict)
    """Plans that ``auto`` chooses by itself: wire CF by settings, such as ``levels=7``; empty: without settings."""
    listed: Mapping[str, float] = field(default_factory=dict)
    """The same, of plans for users to list."""
    strengths: tuple[float, ...] = ()
    """CFs that ``auto`` chooses by itself, of a codec that takes any."""
    late_strengths: tuple[float, ...] = ()
    """The same, only under optimizers that bear late gradients: those of ``gravac.optim``, and Adam with a small β₁."""
    encode_ns: float = 3.0
    """Encoding, for each element, on one core of an AMD EPYC. Windows correct it."""
    decode_ns: float = 3.0
    """Decoding, for each element and payload."""
    kept_ns: tuple[float, float] = (0.0, 0.0)
    """Encoding and decoding more for each of elements / CF^0.75, of a selector."""
    sgd: Kept = field(default_factory=dict)
    """Efficiency under SGD, by ascending CF: of a quantizer its wire CF, of a selector elements in / elements kept."""
    adam: Kept = field(default_factory=dict)
    """Efficiency under all other optimizers."""
    aged: Kept = field(default_factory=dict)
    """Efficiency under ``gravac.optim``, of a codec that sends a part of the elements; others lose what Adam does."""
    low_beta: Kept = field(default_factory=dict)
    """The same under torch's Adam and AdamW with a β₁ of 0.5."""
    matrix: Kept = field(default_factory=dict)
    """Efficiency under Muon."""
    like: str = ""
    """A codec that loses as much at equal CF; instead of the efficiencies."""
    random: bool = False
    """Rounds at random, which delays nothing: a less noisy gradient does not make it lose more."""
    averages_out: bool = False
    """Errs so much that it loses more with fewer ranks than were simulated."""
    lossless: bool = False
    """Keeps its efficiency without an error memory."""
    stacks: "Mapping[str, Offer]" = field(default_factory=dict)
    """Offers of this selector with its values quantized, by the quantizer's name."""

    def rows(self, kind: TableKind) -> tuple[EfficiencyRow, ...]:
        """Return the efficiencies under a kind of optimizer, by ascending CF; empty: unknown."""
        if self.like:
            return of(self.like).rows(kind)
        kept: Kept = getattr(self, kind)
        return tuple(EfficiencyRow(cf, *three) for cf, three in kept.items())


UNKNOWN = Offer()
FILE = Path(__file__).with_name("offers.json")
"""The offers of gravac's own codecs, by name."""
KEPT = ("sgd", "adam", "aged", "low_beta", "matrix")
"""Names of the efficiencies in an offer."""
MEMORY_NS = 1.5
"""Error memory, for each element: adding the residual and keeping the new one. [ns; measured]"""
HUFFMAN_NS = (3.2, 2.6)
"""Encoding and decoding more where codes are Huffman coded, for each byte that they take without it. [ns; measured]"""
_REGISTERED: dict[str, Offer] = {}
"""Offers of classes that were registered in this process."""


@lru_cache(maxsize=1024)
def of(codec: str) -> Offer:
    """Return the offer of a codec, whatever its settings; ``UNKNOWN`` where it has none."""
    name = name_of(codec)
    found = _REGISTERED.get(name) or own().get(name)
    if found is None and (values := values_of(name)):
        return of(selector_of(name)).stacks.get(values, UNKNOWN)
    return found or UNKNOWN


@cache
def own() -> Mapping[str, Offer]:
    """Return the offers of gravac's own codecs. Only their plans are chosen by ``auto`` by itself."""
    return {name: _read(each) for name, each in json.loads(FILE.read_text(encoding="utf-8")).items()}


def register(name: str, member: type) -> None:
    """Take note of the offer of a class, if it states one itself."""
    if isinstance(offer := vars(member).get("offer"), Offer):
        _REGISTERED[name] = offer
        of.cache_clear()


def written(offer: Offer) -> dict[str, Any]:
    """Return what an offer states, as ``FILE`` has it: a list of CF and three values for each efficiency."""
    found: dict[str, Any] = {}
    for each in fields(Offer):
        value = getattr(offer, each.name)
        if value == getattr(UNKNOWN, each.name):
            continue
        if each.name in KEPT:
            value = [[cf, *three] for cf, three in value.items()]
        elif each.name == "stacks":
            value = {name: written(stack) for name, stack in value.items()}
        found[each.name] = value
    return found


def _read(stated: dict[str, Any]) -> Offer:
    values = dict(stated)
    for name, value in stated.items():
        if name in KEPT:
            values[name] = {cf: tuple(three) for cf, *three in value}
        elif name == "stacks":
            values[name] = {each: _read(stack) for each, stack in value.items()}
        elif isinstance(value, list):
            values[name] = tuple(value)
    return Offer(**values)


def coding_family(codec: str) -> str:
    """Return the name of the codecs whose coding takes as much longer or shorter than stated."""
    name = name_of(selector_of(codec))
    return f"{name}-huffman" if is_coded(codec) else name


def pass_ns(codec: str, cf: float, payloads: int) -> tuple[float, float]:
    """Return what encoding and decoding take for each element, in nanoseconds.

    Args:
        codec: Name with settings.
        cf: CF of the plan, without Huffman coding.
        payloads: Payloads that are decoded. A rank keeps the codes of its own, so that one needs no Huffman decoding.
    """
    offer = of(selector_of(codec))
    encode, decode = offer.encode_ns, payloads * offer.decode_ns
    if is_coded(codec):
        code_bytes = 4 / cf  # of a float32
        encode += HUFFMAN_NS[0] * code_bytes
        decode += HUFFMAN_NS[1] * code_bytes * max(0, payloads - 1)
    return encode, decode


def coding_seconds(codec: str, cf: float, elements: int, payloads: int) -> float:
    """Return the seconds to encode and decode one gradient, as measured elsewhere; 0 for dense.

    Args:
        codec: See ``pass_ns``.
        cf: See ``pass_ns``.
        elements: Elements of the gradient.
        payloads: See ``pass_ns``.
    """
    if cf == 1.0:
        return 0.0
    root = math.sqrt(cf)
    kept = 1.0 / (root * math.sqrt(root))  # CF^-0.75
    encode, decode = pass_ns(codec, cf, payloads)
    encode_kept, decode_kept = of(selector_of(codec)).kept_ns
    each = MEMORY_NS + encode + decode + (encode_kept + payloads * decode_kept) * kept
    return elements * each * 1e-9
