"""Steps of an error memory for its tests: gradients by seed, any layout of buckets, any codec."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from gravac.compressors import Compressor, Key, build
from gravac.memories import MEMORIES, Bucket, Memory
from gravac.memories import build as build_memory
from gravac.memories.states import to_dense

SIZES = {"a": 300, "b": 7, "c": 512, "d": 1}
ALL = [
    f"{name}:{example}" if example else name
    for name, memory in sorted(MEMORIES.items())
    for example in ("", *memory.examples)
]
"""Every registered memory by its defaults and by each of its examples."""


def bucket(number: int, *names: str) -> Bucket:
    return Bucket(number, names, tuple(SIZES[name] for name in names))


ONE = [bucket(0, "d", "c", "b", "a")]
TWO = [bucket(0, "c"), bucket(1, "a", "d", "b")]


def gradients(seed: int) -> dict[str, Tensor]:
    """Small integers: sums are exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(-50, 50, (n,), generator=generator).float() for name, n in SIZES.items()}


def flat(one: Bucket, values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values[name] for name in one.names])


def by_name(one: Bucket, values: Tensor) -> dict[str, Tensor]:
    return dict(zip(one.names, torch.split(values, list(one.numels)), strict=True))


def step(
    memory: Memory,
    layout: list[Bucket],
    grads: dict[str, Tensor],
    number: int,
    *,
    cf: float = 5.0,
    codec: Compressor | None = None,
    keep: bool = True,
    unused: Collection[str] = (),
    stays: bool = False,
) -> dict[str, Tensor]:
    """One step; returns what was sent. CF 1: all of it, whole. ``unused``: parameters that nobody used."""
    codec = codec or build("topk")
    sent: dict[str, Tensor] = {}
    for one in layout:
        part, gradient = memory.open(one), flat(one, grads)
        part.gradient_stays, before = stays, gradient.clone()
        p = part.compensate(gradient, dense=cf == 1.0)
        if not set(unused).isdisjoint(one.names):
            part.withhold(p, flat(one, {k: torch.full((n,), k in unused) for k, n in SIZES.items()}))
        payload = codec.compress(p, cf, Key(0, number, one.number, 0), torch.float32) if cf > 1 else None
        out = p.clone() if payload is None else torch.zeros_like(p)
        if payload is not None:
            codec.decompress(payload, out)
        part.update(codec, payload)
        assert torch.equal(gradient, before)
        sent |= by_name(one, out)
    memory.commit() if keep else memory.rollback()
    return sent


def inflow(memory: Memory, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """What comes in for a gradient: itself, or what a memory that ``transforms`` would send if it had no residual.

    The other side of "sent + residual = what came in", before a step.
    """
    if not memory.transforms:
        return grads
    twin, state = build_memory(memory.spec), memory.state_dict()
    twin.world_size = memory.world_size
    twin.load_state_dict({key: value for key, value in state.items() if key not in SIZES})
    return by_name(ONE[0], twin.open(ONE[0]).compensate(flat(ONE[0], grads), dense=True))


def residuals(memory: Memory) -> dict[str, Tensor]:
    """The residual per parameter, without momentum and without tags."""
    return to_dense(memory.state_dict())


def offers(memory: Memory, layout: list[Bucket], dense: bool = False) -> dict[str, Tensor]:
    """What the memory would add to a gradient; leaves no trace."""
    found: dict[str, Tensor] = {}
    for one in layout:
        found |= {
            k: v.clone()
            for k, v in by_name(
                one, memory.open(one).compensate(torch.zeros(sum(one.numels)), dense=dense)
            ).items()
        }
    memory.rollback()
    return found


def tensors_of(thing: object, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor reachable from an object of ours."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    inside: list[object] = list(getattr(thing, "__dict__", {}).values())
    inside += [getattr(thing, slot, None) for slot in getattr(type(thing), "__slots__", ())]
    if isinstance(thing, dict):
        inside += thing.values()
    elif isinstance(thing, list | tuple):
        inside += thing
    for one in inside:
        if not isinstance(one, type | str | int | float):
            yield from tensors_of(one, seen)
