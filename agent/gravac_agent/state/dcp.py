"""Reads an agent's state with ``torch.distributed.checkpoint`` (DCP), saved by any number of ranks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from gravac_agent.state import by_rank

Path = tuple[str, ...]


class LoadPlanner(DefaultLoadPlanner):
    """Reads the states of agents with ``torch.distributed.checkpoint.load``, beside everything else.

    DCP reads the keys that the running program has. A new agent has no residual yet, and does not know how many ranks
    saved theirs. This planner adds the keys that the checkpoint has: with the same number of ranks those of this rank,
    with another number those of all ranks. Where the checkpoint has no state of the agent, the agent warns and starts
    from zero. Arguments are those of ``DefaultLoadPlanner``.

    Example::

        state = {"model": model.state_dict(), "agent": agent}
        torch.distributed.checkpoint.load(state, checkpoint_id=path, planner=gravac.LoadPlanner())
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Add the keys of agents to ``state_dict``, and go on as ``DefaultLoadPlanner`` does."""
        if metadata is not None:
            for path, agent in list(_agents(state_dict, ())):
                _add_keys(agent, path, metadata)
        super().set_up_planner(state_dict, metadata, is_coordinator)


def _agents(state: dict[str, Any], path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the state of each agent in ``state``, at any depth, with its path."""
    if by_rank.FORMAT in state:
        yield path, state
        return
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _agents(value, (*path, str(key)))


def _add_keys(agent: dict[str, Any], path: Path, metadata: Metadata) -> None:
    """Replace the state of a new agent by room for what the checkpoint has."""
    own = next((key for key in agent if by_rank.KEY.fullmatch(key)), None)
    world_size = None if own is None else dict(agent[own]["facts"])["world_size"]
    saved = _saved(path, metadata)
    agent.clear()
    if (by_rank.FORMAT,) in saved:
        agent[by_rank.FORMAT] = by_rank.VERSION
    group = _group(own or "rank0")
    ranks = {keys[0] for keys in saved if len(keys) > 1 and _group(keys[0]) == group}
    wanted = {own} if own in ranks and len(ranks) == world_size else ranks
    for keys, value in saved.items():
        # An agent that is not enabled takes no residual.
        if len(keys) > 1 and keys[0] in wanted and (own or keys[1:] == ("facts",)):
            place = agent
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            place[keys[-1]] = _room(value)


def _saved(path: Path, metadata: Metadata) -> dict[Path, Any]:
    """Return what the checkpoint has below ``path``: paths from there on, and how each value is stored."""
    paths = metadata.planner_data or {}
    return {
        tuple(map(str, paths[name][len(path) :])): value
        for name, value in metadata.state_dict_metadata.items()
        if name in paths and tuple(map(str, paths[name][: len(path)])) == path
    }


def _group(key: str) -> str | None:
    found = by_rank.KEY.fullmatch(key)
    return None if found is None else found[1] or ""


def _room(stored: Any) -> Any:
    """Return what a value is read into: DCP fills tensors, and replaces everything else."""
    if isinstance(stored, TensorStorageMetadata):
        return torch.empty(stored.size, dtype=stored.properties.dtype, device="cpu")
    return None
