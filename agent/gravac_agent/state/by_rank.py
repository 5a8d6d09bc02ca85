"""The states of several ranks in one dictionary, as ``torch.save`` and ``torch.distributed.checkpoint`` (DCP) write it.

DCP writes one value for each key, whichever rank had it. So the state of each rank is under a key of its own. DCP also
writes an object for each number inside nested dictionaries. So all but the residual is one list of pairs, which it
writes as one object.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from gravac_agent.errors import SetupError
from gravac_agent.fsdp.model import DataParallel

FORMAT = "gravac_agent"
"""Key that marks a dictionary as one of these; its value is the version of the layout."""
VERSION = 1
KEY = re.compile(r"rank[0-9]+(-group[0-9]+)?")
"""Key of a rank's state. The group is named where a job has several data-parallel groups."""


def key_of(module: DataParallel) -> str:
    """Return the key of this rank's state."""
    members = dist.get_process_group_ranks(module.process_group)
    group = "" if len(members) == dist.get_world_size() else f"-group{members[0]}"
    return f"rank{module.process_group.rank()}{group}"


def pack(state: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the state of one rank in the layout of all ranks.

    Args:
        state: What ``checkpoint.save`` returns.
        key: What ``key_of`` returns.
    """
    residual = dict(state["residual"])
    facts = {name: value for name, value in state.items() if name != "residual"}
    return {
        FORMAT: VERSION,
        key: {"facts": [*facts.items(), ("residuals", sorted(residual))], "residual": residual},
    }


def unpack(state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the states of all ranks in it, each as ``checkpoint.save`` returned it.

    Args:
        state: One dictionary with any number of ranks, or what ``checkpoint.save`` returned; or a list of such.

    Raises:
        SetupError: It is no state of an agent, or a residual is missing.
    """
    if not isinstance(state, Mapping):
        if not (isinstance(state, list | tuple) and all(isinstance(each, Mapping) for each in state)):
            raise SetupError(
                f"state={state!r:.100} is no state of an Agent: pass what state_dict() returned, or a list of those of "
                "all ranks; torch.load reads them from a file"
            )
        return [one for each in state for one in unpack(each)]
    if "version" in state:
        return [dict(state)]
    if state and state.get(FORMAT) != VERSION:
        raise SetupError(
            f"state with the keys {', '.join(map(str, state))[:200]} is none of this Agent's: pass what state_dict() "
            "returned"
        )
    return [_flat(key, entry) for key, entry in state.items() if KEY.fullmatch(key)]


def has_residual(state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a rank of ``state`` had a residual, also where only its ``facts`` were read."""
    if not isinstance(state, Mapping):
        return any(has_residual(each) for each in state)
    entries = [entry for key, entry in state.items() if KEY.fullmatch(key)]
    return bool(state.get("residual")) or any(dict(entry["facts"])["residuals"] for entry in entries)


def _flat(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    facts, residual = dict(entry["facts"]), dict(entry.get("residual", {}))
    missing = set(facts.pop("residuals")) - residual.keys()
    if missing:
        raise SetupError(
            f"the residual of {len(missing)} parameters was not read from the checkpoint ({key}, such as "
            f"{min(missing)!r}): write torch.distributed.checkpoint.load(..., planner=gravac.LoadPlanner())"
        )
    return {**facts, "residual": residual}
