"""Offers: what a codec states of itself to policy ``auto``: its plans, what they cost, and what they keep.

An offer stands in the codec's class as ``offer = Offer(…)``, with plain values. The controller runs without torch, so
it reads offers from the source and does not import codecs.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple

TableKind = Literal["sgd", "adam", "aged", "low_beta", "matrix"]
"""Which simulations count: of SGD, Adam, ``gravac.optim``, Adam with a small β₁, optimizers of whole matrices."""
Kept = Mapping[float, tuple[float, float, float]]
"""Statistical efficiency by CF: of the task that bears it worst, likely, of the task that bears it best."""


class Row(NamedTuple):
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

    def rows(self, kind: TableKind) -> tuple[Row, ...]:
        """Return the efficiencies under a kind of optimizer, by ascending CF; empty: unknown."""
        if self.like:
            return of(self.like).rows(kind)
        kept: Kept = getattr(self, kind)
        return tuple(Row(cf, *three) for cf, three in kept.items())


UNKNOWN = Offer()
_REGISTERED: dict[str, Offer] = {}
"""Of classes that were registered in this process."""


@lru_cache(maxsize=1024)
def of(codec: str) -> Offer:
    """Return the offer of a codec, whatever its settings; ``UNKNOWN`` where it has none."""
    name = "+".join(part.partition(":")[0] for part in codec.split("+"))
    found = _REGISTERED.get(name) or own().get(name)
    selector, plus, values = name.partition("+")
    if found is None and plus:
        return of(selector).stacks.get(values, UNKNOWN)
    return found or _of_plugin(name)


@cache
def own() -> Mapping[str, Offer]:
    """Return the offers of gravac's own codecs. Only their plans are chosen by ``auto`` by itself."""
    here = Path(__file__).parent
    files = [file for room in ("compressors", "aggregators") for file in sorted((here / room).rglob("*.py"))]
    return {name: offer for file in files for name, offer in _written(file)}


def register(name: str, member: type) -> None:
    """Take note of the offer of a class, if it states one itself."""
    if isinstance(offer := vars(member).get("offer"), Offer):
        _REGISTERED[name] = offer
        of.cache_clear()


def _written(file: Path) -> Iterator[tuple[str, Offer]]:
    """Yield name and offer of each class in a source file that states one."""
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if "offer = Offer(" in source else ():
        if isinstance(node, ast.ClassDef):
            assigned = {
                ast.unparse(each.targets[0]): each.value for each in node.body if isinstance(each, ast.Assign)
            }
            if "offer" in assigned:
                yield ast.literal_eval(assigned["name"]), _value(assigned["offer"])


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return Offer(**{str(each.arg): _value(each.value) for each in node.keywords})
    if isinstance(node, ast.Dict):
        return {
            ast.literal_eval(key or node): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
        }
    return ast.literal_eval(node)


def _of_plugin(name: str) -> Offer:
    """Return the offer of a codec of another distribution, without importing it."""
    module = _plugins().get(name)
    path: Sequence[str] | None = None
    spec = None
    try:
        for end in range(1, len(parts := module.split(".")) + 1) if module else ():
            spec = PathFinder.find_spec(".".join(parts[:end]), path)
            path = None if spec is None else spec.submodule_search_locations
        return dict(_written(Path(spec.origin))).get(name, UNKNOWN) if spec and spec.origin else UNKNOWN
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        warnings.warn(f"the offer of the plugin's codec {name!r} is not plain values: {error}", stacklevel=2)
        return UNKNOWN


@cache
def _plugins() -> Mapping[str, str]:
    """Return the modules of plugins by the names of their codecs and aggregators."""
    groups = ("gravac.compressors", "gravac.aggregators")
    return {entry.name: entry.module for group in groups for entry in entry_points(group=group)}
