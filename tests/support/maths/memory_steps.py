"""Steps of an error memory for its tests: gradients by seed, any layout of buckets, any codec."""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from gravac.compressors import Compressor, Key, build
from gravac.memories import Bucket, Memory
from gravac.memories.states import to_dense

SIZES = {"a": 300, "b": 7, "c": 512, "d": 1}
EXAMPLES = (
    "none",
    "residual",
    "partial",
    "partial:beta=0.9",
    "conef",
    "conef:bits=4",
    "conef:beta=0.5",
    "conef:codec=natural",
    "conef-sketch",
    "conef-sketch:size=0.1,beta=0.9",
    "conef-sketch:size=0.3,beta=0.7,block=100",
    "iconef-v1",
    "iconef-v2:bits=4",
    "residual-bf16:rounding=nearest",
    "momentum",
    "momentum:masking=false",
    "momentum:momentum=0.5,nesterov=true",
    "momentum:clip=300.0",
)
"""Every registered memory, some with settings; the suite adds new ones by name."""


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
) -> dict[str, Tensor]:
    """One step; returns what was sent. CF 1: all of it, whole. ``unused``: parameters that nobody used."""
    codec = codec or build("topk")
    sent: dict[str, Tensor] = {}
    for one in layout:
        gradient = flat(one, grads)
        before = gradient.clone()
        p = memory.compensate(one, gradient, dense=cf == 1.0)
        if not set(unused).isdisjoint(one.names):
            memory.withhold(one, p, flat(one, {k: torch.full((n,), k in unused) for k, n in SIZES.items()}))
        payload = codec.compress(p, cf, Key(0, number, one.number, 0), torch.float32) if cf > 1 else None
        out = p.clone() if payload is None else torch.zeros_like(p)
        if payload is not None:
            codec.decompress(payload, out)
        memory.update(one, codec, payload)
        assert torch.equal(gradient, before)
        sent |= by_name(one, out)
    memory.commit() if keep else memory.rollback()
    return sent


class Inflow:
    """What comes in for a gradient, in float64: the gradient itself, or what the memory's paper makes of it.

    The other side of "sent + residual = what came in". A memory that ``transforms`` has its rule written down here once
    more, by parameter; one that has none fails the suite.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._velocity = {name: torch.zeros(n, dtype=torch.float64) for name, n in SIZES.items()}
        state = memory.state_dict()
        if memory.transforms:
            assert memory.name == "momentum", "write its rule here"
            self._velocity |= {
                name: state[key].double() for name in SIZES if (key := f"::velocity/{name}") in state
            }

    def __call__(self, grads: dict[str, Tensor]) -> dict[str, Tensor]:
        """What comes in; counts as a step only if ``keep`` follows."""
        return {name: self._of(name, gradient.double())[0] for name, gradient in grads.items()}

    def keep(self, grads: dict[str, Tensor], sent: dict[str, Tensor], dense: bool) -> None:
        for name, gradient in grads.items():
            velocity = self._of(name, gradient.double())[1]
            if self._memory.transforms and self._memory.settings.masking and not dense:
                velocity[sent[name] != 0] = 0.0
            self._velocity[name] = velocity

    def _of(self, name: str, g: Tensor) -> tuple[Tensor, Tensor]:
        if not self._memory.transforms:
            return g, self._velocity[name]
        s = self._memory.settings
        if s.clip is not None and float(g.norm()) > s.clip / self._memory.world_size**0.5:
            g = g * (s.clip / self._memory.world_size**0.5 / g.norm())
        if s.nesterov:
            u = s.momentum * (self._velocity[name] + g)
            return u + g, u
        u = s.momentum * self._velocity[name] + g
        return u, u


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
                one, memory.compensate(one, torch.zeros(sum(one.numels)), dense=dense)
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
