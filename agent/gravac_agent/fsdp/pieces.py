"""Residuals of divided gradients for another number of ranks, or for ranks that exchange whole gradients.

A piece of a parameter is the part that one rank owns: some of its rows, padded. So the pieces of all ranks, one after
the other, are the parameter with padding at its end.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from gravac.memories import Bucket, reshard
from gravac.memories.states import VELOCITY, to_dense, velocities
from gravac_agent.errors import SetupError
from gravac_agent.exchange.host_level import HostLevel, piece_shape
from gravac_agent.fsdp.groups import PIECE, first_calls, piece_name
from gravac_agent.fsdp.model import DataParallel, ShardedModel

Shapes = Mapping[str, Sequence[int]]
Value = TypeVar("Value")


def shard_of(module: DataParallel, host: HostLevel | None) -> list[int] | None:
    """Return the number of this rank's shard and how many there are; None if its residual is that of all shards.

    Args:
        module: The module.
        host: Divides whole gradients among the ranks of this host; None: nobody does.
    """
    if host is not None:
        return [host.number, host.ranks]
    if not isinstance(module, ShardedModel) or module.shard is None:
        return None
    return [module.shard, module.ranks]


def spread(residual: Mapping[str, Tensor], shard: Sequence[int], shapes: Shapes) -> dict[str, Tensor]:
    """Return a residual of whole parameters that has a rank's pieces. The mean over all ranks stays the same.

    Args:
        residual: State of an error memory.
        shard: What ``shard_of`` returns.
        shapes: Shape of each parameter.
    """
    number, ranks = shard
    found: dict[str, Tensor] = {}
    for name, piece in first_calls(to_dense(residual) | _keyed(velocities(residual))).items():
        shape = _shape(name.removeprefix(VELOCITY), shapes)
        whole = torch.zeros(ranks * piece.numel(), dtype=torch.float32, device=piece.device)
        whole[number * piece.numel() :][: piece.numel()] = ranks * piece  # as one of so many ranks has it
        found[name] = whole[: math.prod(shape)]
    return found


def divided(residual: Mapping[str, Tensor], host: HostLevel, shapes: Shapes) -> dict[str, Tensor]:
    """Return this rank's pieces of a residual of whole parameters: the mean over its host. All ranks of it call this.

    Args:
        residual: State of an error memory. The other ranks may hold other parameters.
        host: The ranks.
        shapes: Shape of each parameter, in the same order on all ranks.
    """
    held = to_dense(residual) | _keyed(velocities(residual))
    keys = [*shapes, *_keyed(shapes)]
    found: dict[str, Tensor] = {}
    for key, wanted in zip(keys, host.any_of([key in held for key in keys]), strict=True):
        if wanted:
            shape = tuple(shapes[key.removeprefix(VELOCITY)])
            numel = math.prod(shape)
            whole = held[key] if key in held else torch.zeros(numel, dtype=torch.float32, device=host.device)
            found[key] = host.average(whole, Bucket(0, (key,), (numel,), (shape,)))
    return found


def _keyed(by_name: Mapping[str, Value]) -> dict[str, Value]:
    return {VELOCITY + name: value for name, value in by_name.items()}


def mean_by_shard(states: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the mean residual over the ranks of an earlier run. If each held a shard, it is divided into pieces.

    Args:
        states: The states that ``checkpoint.save`` returned on all ranks of that run.

    Raises:
        SetupError: The state of a rank is missing.
    """
    have = sorted(state["rank"] for state in states)
    if not states or have != list(range(len(states))) or len(states) != states[0]["world_size"]:
        raise SetupError(f"pass the states of all ranks of the earlier run; the list has ranks {have}")
    if states[0].get("shard") is None:
        return reshard([state["residual"] for state in states])
    found: dict[str, Tensor] = {}
    for shard in range(states[0]["shard"][1]):
        mean = reshard([state["residual"] for state in states if state["shard"][0] == shard])
        found |= {piece_name(name, shard): value for name, value in to_dense(mean).items()}
        found |= {VELOCITY + piece_name(name, shard): value for name, value in velocities(mean).items()}
    return found


def fitted(
    residual: dict[str, Tensor], shapes: Shapes, module: DataParallel, shard: Sequence[int] | None
) -> dict[str, Tensor]:
    """Return a saved residual as this module needs it; the residual itself if it fits as it is.

    Args:
        residual: State of an error memory.
        shapes: Shape of each parameter of the model that it was saved for.
        module: The module that loads it.
        shard: What ``shard_of`` returns.

    Raises:
        SetupError: Its pieces cannot be put together.
    """
    ranks = shard[1] if shard is not None else module.ranks if isinstance(module, ShardedModel) else 0
    plain = {name.removeprefix(VELOCITY) for name in (*to_dense(residual), *velocities(residual))}
    saved = {name.rpartition(PIECE)[2] if PIECE in name else "" for name in plain}
    if not plain or (shard is None and saved == ({str(rank) for rank in range(ranks)} if ranks else {""})):
        return residual
    if isinstance(module, ShardedModel) and not module.by_rows:
        raise SetupError(
            "the agent state is of another number of ranks, and shard_placement_fn shards this model along another "
            "dimension than the first: the residual cannot be divided again. Load it with as many ranks as before"
        )
    whole = _joined(to_dense(residual), shapes)
    whole |= _keyed(_joined(velocities(residual), shapes))
    if not ranks:
        return whole
    pieces = _split(whole, shapes, ranks)
    if shard is None:
        return pieces
    own = piece_name("", shard[0])
    return {name.removesuffix(own): piece for name, piece in pieces.items() if name.endswith(own)}


def _joined(residual: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Return the residual of whole parameters, joined from pieces."""
    pieces: dict[str, dict[int, Tensor]] = {}
    for name, value in first_calls(residual).items():
        base, mark, rank = name.rpartition(PIECE)
        pieces.setdefault(base if mark else name, {})[int(rank) if mark else 0] = value
    found: dict[str, Tensor] = {}
    for name, by_rank in pieces.items():
        shape, count = _shape(name, shapes), len(by_rank)
        length = math.prod(piece_shape(shape, count))
        if sorted(by_rank) != list(range(count)) or any(one.numel() != length for one in by_rank.values()):
            raise SetupError(
                f"the agent state has residuals of {[one.numel() for one in by_rank.values()]} elements for the pieces "
                f"of {name!r}, which take {length} each: load the states of all ranks of one checkpoint"
            )
        found[name] = torch.cat([by_rank[rank] for rank in range(count)])[: math.prod(shape)]
    return found


def _split(whole: Mapping[str, Tensor], shapes: Shapes, ranks: int) -> dict[str, Tensor]:
    """Return the pieces of each parameter, all of the same length."""
    found: dict[str, Tensor] = {}
    for name, value in whole.items():
        length = math.prod(piece_shape(_shape(name.removeprefix(VELOCITY), shapes), ranks))
        padded = pad(value, (0, ranks * length - value.numel()))
        for rank, piece in enumerate(padded.split(length)):
            found[piece_name(name, rank)] = piece.clone()
    return found


def _shape(name: str, shapes: Shapes) -> Sequence[int]:
    if name not in shapes:
        raise SetupError(
            f"the agent state has a residual of {name!r}, and no shape of that parameter: load it with as many ranks "
            "as before"
        )
    return shapes[name]
