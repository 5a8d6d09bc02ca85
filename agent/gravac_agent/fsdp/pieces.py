"""Residuals of sharded gradients for another number of ranks, or for a model that is not sharded.

A piece of a parameter is the part that one rank owns: some of its rows, padded. So the pieces of all ranks, one after
the other, are the parameter with padding at its end.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gravac.memories import reshard
from gravac.memories.states import VELOCITY, to_dense, velocities
from gravac_agent.errors import SetupError
from gravac_agent.fsdp.groups import PIECE, first_calls, piece_name
from gravac_agent.fsdp.model import DataParallel, ShardedModel

Shapes = Mapping[str, Sequence[int]]


def shard_of(module: DataParallel) -> list[int] | None:
    """Return the number of this rank's shard and how many there are; None if its residual is that of all shards."""
    if not isinstance(module, ShardedModel) or module.shard is None:
        return None
    return [module.shard, module.ranks]


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


def fitted(residual: dict[str, Tensor], shapes: Shapes, module: DataParallel) -> dict[str, Tensor]:
    """Return a saved residual as this module needs it; the residual itself if it fits as it is.

    Args:
        residual: State of an error memory.
        shapes: Shape of each parameter of the model that it was saved for.
        module: The module that loads it.

    Raises:
        SetupError: Its pieces cannot be put together.
    """
    ranks = module.ranks if isinstance(module, ShardedModel) else 0
    shard = shard_of(module)
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
    moving = {VELOCITY + name: value for name, value in _joined(velocities(residual), shapes).items()}
    whole |= moving
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
        rows, *rest = _shape(name, shapes) or (1,)
        count = len(by_rank)
        length = -(-rows // count) * math.prod(rest)
        if sorted(by_rank) != list(range(count)) or any(one.numel() != length for one in by_rank.values()):
            raise SetupError(
                f"the agent state has residuals of {[one.numel() for one in by_rank.values()]} elements for the pieces "
                f"of {name!r}, which take {length} each: load the states of all ranks of one checkpoint"
            )
        found[name] = torch.cat([by_rank[rank] for rank in range(count)])[: rows * math.prod(rest)]
    return found


def _split(whole: Mapping[str, Tensor], shapes: Shapes, ranks: int) -> dict[str, Tensor]:
    """Return the pieces of each parameter, all of the same length."""
    found: dict[str, Tensor] = {}
    for name, value in whole.items():
        rows, *rest = _shape(name.removeprefix(VELOCITY), shapes)
        length = -(-rows // ranks) * math.prod(rest)
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
