"""The catalogue: everything that can be chosen by name, as data.

``gravac codecs --json`` and the catalogue page are made from it. It is computed from the registries when asked for.
"""

import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

import torch
from pydantic import Field
from pydantic.fields import FieldInfo

from gravac.aggregators import AGGREGATORS, Aggregator
from gravac.collectives import ALONE, COLLECTIVES, Collective, Workload
from gravac.compressors import COMPRESSORS, Compressor, Key
from gravac.compressors import build as build_compressor
from gravac.memories import MEMORIES, Bucket, Memory
from gravac.policies import POLICIES, AutoPolicy, Policy
from gravac.policies.auto import plans as auto_plans
from gravac.protocol import Record
from gravac.registry import PluginWarning, Registry

SIZES = (1000, 1 << 20)
"""Elements for which bytes are given."""
CFS = (10.0, 100.0)
RANKS = 8
"""World size for which bytes of members with several rounds are given."""

Kind = Literal["compressor", "aggregator", "memory", "collective", "policy"]


Group = Literal["auto", "papers"]


class Setting(Record):
    """One setting, as it is written after the colon."""

    name: str
    default: str | None = Field(description="JSON; None when it must be given.")
    meaning: str | None = Field(description="None: see the member's summary.")


class Cost(Record):
    """Bytes and proven error of a member for one size, float32."""

    numel: int = Field(description="Elements.")
    cf: float | None = Field(description="CF asked for; None if there is none.")
    reached_cf: float | None = Field(description="CF that this gives; the expected one if sizes vary.")
    payload_bytes: int | None = Field(
        description="Bytes a rank hands to collectives; the expected ones if sizes vary."
    )
    link_bytes: int | None = Field(description=f"Bytes a rank of {RANKS} puts on its network link.")
    held_bytes: int | None = Field(description="Bytes a rank holds from step to step.")
    delta: float | None = Field(description="Proven: E‖C(x)−x‖² ≤ (1−delta)·‖x‖².")
    omega: float | None = Field(description="Proven: E‖C(x)−x‖² ≤ omega·‖x‖².")
    absolute: float | None = Field(description="Proven: squared error on top of that, or alone.")


class CatalogueEntry(Record):
    """One member of a registry."""

    kind: Kind
    name: str
    group: Group | None = Field(
        description="auto: what policy auto uses by itself; papers: all others, for you to choose. None: a collective."
    )
    summary: str = Field(description="One sentence.")
    details: str = Field(
        description="How it works, what it costs, its formulas: paragraphs of plain text. May be empty."
    )
    source: str = Field(description="Paper and section.")
    traits: dict[str, bool] = Field(description="What it is; empty if the kind has no traits.")
    settings: tuple[Setting, ...]
    costs: tuple[Cost, ...]


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Return every registered member, by kind, then in the order of its registry."""
    return tuple(_entries())


def _entries() -> Iterator[CatalogueEntry]:
    kinds: tuple[tuple[Registry[Any], Callable[[Any], CatalogueEntry]], ...] = (
        (COMPRESSORS, _compressor),
        (AGGREGATORS, _aggregator),
        (MEMORIES, _memory),
        (COLLECTIVES, _collective),
        (POLICIES, _policy),
    )
    for registry, describe in kinds:
        for name, member in registry.items():
            try:
                yield describe(member)
            except Exception as error:
                if not registry.is_plugins(name):
                    raise
                problem = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"{registry.what}={name!r} of a plugin is left out: {problem}",
                    PluginWarning,
                    stacklevel=3,
                )


def _compressor(member: type[Compressor]) -> CatalogueEntry:
    codec = build_compressor(member.name)
    whole = codec.message_values(torch.float32), codec.message_rounding(CFS[0], torch.float32)
    traits = asdict(codec.traits) | {"whole_message": any(whole)}
    return _entry("compressor", codec, member, traits, _codec_costs(codec))


def _aggregator(member: type[Aggregator]) -> CatalogueEntry:
    return _entry(
        "aggregator",
        member,
        member,
        {"conserves": member.conserves, "sync_free": member.sync_free},
        _rounds(member),
    )


def _memory(member: type[Memory]) -> CatalogueEntry:
    traits = {"exact": member.exact, "transforms": member.transforms}
    return _entry("memory", member, member, traits, _held(member))


def _collective(member: type[Collective]) -> CatalogueEntry:
    return _entry("collective", member, member, {"sync_free": member.sync_free}, _moved(member))


def _policy(member: type[Policy]) -> CatalogueEntry:
    return _entry("policy", member, member, {}, ())


def _entry(
    kind: Kind,
    member: Any,
    owner: type[Any],
    traits: Mapping[str, bool],
    costs: tuple[Cost, ...],
) -> CatalogueEntry:
    paragraphs = (inspect.getdoc(owner) or "").split("\n\n")
    if kind == "policy":  # a module of several classes, so the module says what it is
        paragraphs.insert(0, (inspect.getdoc(inspect.getmodule(owner)) or "").split("\n\n")[0])
    prose = (text for text in paragraphs if not text.startswith(("Args:", "Raises:")))
    summary, *details = (" ".join(text.split()) for text in prose)
    return CatalogueEntry(
        kind=kind,
        name=member.name,
        group=_group(kind, member.name),
        summary=summary,
        details="\n\n".join(details),
        source=member.source,
        traits=dict(traits),
        settings=_settings(owner),
        costs=costs,
    )


def _group(kind: Kind, name: str) -> Group | None:
    if kind == "collective":  # the agent chooses one, whatever the policy
        return None
    chosen = {**auto_plans.members(), "policy": {AutoPolicy.name}}
    return "auto" if name in chosen.get(kind, ()) else "papers"


def _settings(owner: type[Any]) -> tuple[Setting, ...]:
    model = getattr(owner, "Settings", None)
    if model is not None:
        fields = model.model_fields
        # Some defaults follow from other settings, so they are read off an instance if there can be one.
        bare = not any(field.is_required() for field in fields.values())
        defaults = model().model_dump(mode="json") if bare else {}
        return tuple(
            Setting(
                name=name,
                default=json.dumps(defaults[name]) if bare else _plain_default(field),
                meaning=field.description,
            )
            for name, field in fields.items()
        )
    given = inspect.signature(owner).parameters.values()
    return tuple(
        Setting(
            name=one.name,
            default=None if one.default is one.empty else json.dumps(one.default),
            meaning=None,
        )
        for one in given
        if one.kind is one.KEYWORD_ONLY
    )


def _plain_default(field: FieldInfo) -> str | None:
    return None if field.is_required() or field.default_factory is not None else json.dumps(field.default)


def _cost(numel: int, **known: Any) -> Cost:
    empty = dict.fromkeys(Cost.model_fields)
    return Cost(**{**empty, "numel": numel, **known})


def _codec_costs(codec: Compressor) -> tuple[Cost, ...]:
    return tuple(
        _cost(
            numel,
            cf=cf,
            reached_cf=float(codec.reached(numel, cf)),
            payload_bytes=codec.wire_bytes(numel, cf, torch.float32),
            **asdict(codec.bound(numel, cf)),
        )
        for numel in SIZES
        for cf in CFS
    )


def _one_matrix(numel: int) -> Bucket:
    """Return a bucket that is one matrix, nearly square."""
    rows = 1 << (numel.bit_length() // 2)
    while numel % rows:
        rows //= 2
    return Bucket(0, ("weight",), (numel,), ((rows, numel // rows),))


def _rounds(aggregator: type[Aggregator]) -> tuple[Cost, ...]:
    member = aggregator(ALONE)
    costs = []
    for numel in SIZES:
        for cf in CFS:
            sent = member.wire_bytes(_one_matrix(numel), cf, torch.float32, RANKS)
            costs.append(_cost(numel, cf=cf, reached_cf=4 * numel / sent, payload_bytes=sent))
    return tuple(costs)


def _held(memory: type[Memory]) -> tuple[Cost, ...]:
    """Bytes really held under DDP after a step that sent Top-k at CF 100."""
    costs, codec = [], build_compressor("topk")
    for numel in SIZES:
        member = memory()
        part = member.open(Bucket(0, ("weight",), (numel,)))
        gradient = torch.linspace(-1, 1, numel, dtype=torch.float32, device="cpu")
        part.gradient_stays = True
        p = part.compensate(gradient)
        part.update(codec, codec.compress(p, 100.0, Key(0, 0, 0, 0), torch.float32))
        member.commit()
        costs.append(_cost(numel, held_bytes=member.nbytes()))
    return tuple(costs)


def _moved(collective: type[Collective]) -> tuple[Cost, ...]:
    """Bytes of Top-k, or of a quantizer where the collective needs one."""
    codec, member = build_compressor("topk"), collective(ALONE)
    if not collective.fits(codec):
        codec = build_compressor("nearest")
    loads = [Workload(codec, numel, cf, torch.float32, RANKS) for numel in SIZES for cf in CFS]
    return tuple(
        _cost(
            load.numel,
            cf=load.cf,
            reached_cf=float(codec.reached(load.numel, load.cf)),
            payload_bytes=member.payload_bytes(load),
            link_bytes=member.link_bytes(load),
        )
        for load in loads
    )
