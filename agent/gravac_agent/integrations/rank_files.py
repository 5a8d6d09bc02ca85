"""The agent's state beside a framework's checkpoint: one file per rank in a folder."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gravac_agent.agent import Agent
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import by_rank, fail_together

log = logging.getLogger("gravac.agent")

NAME = re.compile(r"gravac-rank(\d+)-of-(\d+)\.pt")


def save(state: Mapping[str, Any], folder: Path, rank: int, world_size: int) -> None:
    """Write this rank's state. A failure is logged and does not stop the training.

    Args:
        state: What ``Agent.state_dict`` returned.
        folder: Folder of the checkpoint; made where it is missing.
        rank: This rank.
        world_size: Number of ranks.
    """
    path = folder / f"gravac-rank{rank}-of-{world_size}.pt"
    draft = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(dict(state), draft)
        os.replace(draft, path)  # a run that is killed now leaves the whole file or none
        for other in folder.iterdir():
            found = NAME.fullmatch(other.name)
            if rank == 0 and found and int(found[2]) != world_size:
                other.unlink(missing_ok=True)
    except OSError as error:
        log.error("the agent's state could not be saved in %s: %s", folder, error)


def remove(folder: Path, rank: int) -> None:
    """Delete this rank's files in a folder, and the folder when it is empty."""
    try:
        for path in folder.iterdir():
            found = NAME.fullmatch(path.name)
            if found and int(found[1]) == rank:
                path.unlink(missing_ok=True)
        folder.rmdir()
    except OSError:  # not there, or other ranks have files in it
        return


def load(agent: Agent, folders: Iterable[Path]) -> bool:
    """Load the state of the first folder that has one. Every rank calls it, after the agent's start.

    With as many ranks as before, each needs its own file only. With another number, each needs the files of all ranks,
    so the folder must be shared by all hosts.

    Args:
        agent: The running agent.
        folders: Where to look, in this order; equal on all ranks.

    Returns:
        Whether a state was loaded. Without one, the agent starts afresh and a warning says so.

    Raises:
        SetupError: On all ranks, when a state cannot be read or does not fit on one.
        AgreementError: On all ranks, when their states are of different steps.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    looked = list(folders)
    for folder in looked:
        found = _states(folder, rank, world)
        everyone = dist.group.WORLD
        assert everyone is not None
        missing = [str(number) for number, files in enumerate(by_rank(len(found), everyone)) if not files]
        if not missing:
            with fail_together(everyone):
                states = [_read(path) for path in found]
            agent.load_state_dict(states)
            return True
        if len(missing) < world:
            log.warning("%s has no agent state for rank %s", folder, ", ".join(missing))
    log.warning(
        "the training resumes from a checkpoint without the agent's state (looked in %s): the residual starts at zero "
        "and the policy from the beginning",
        ", ".join(map(str, looked)) or "no folder",
    )
    return False


def _read(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:  # whatever a damaged file makes of torch
        raise SetupError(f"{path} cannot be read, so resume from another checkpoint: {error}") from error


def _states(folder: Path, rank: int, world: int) -> list[Path]:
    """Return this rank's file, or those of all ranks of a run with another number of ranks; empty if incomplete."""
    own = folder / f"gravac-rank{rank}-of-{world}.pt"
    if own.is_file():
        return [own]
    try:
        found = {
            (int(m[2]), int(m[1])): path for path in folder.iterdir() if (m := NAME.fullmatch(path.name))
        }
    except OSError:
        return []
    for size in {size for size, _ in found} - {world}:
        ranks = [found.get((size, number)) for number in range(size)]
        if all(ranks):
            return [path for path in ranks if path is not None]
    return []
