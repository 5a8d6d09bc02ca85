"""What ranks settle before the first step: the same settings everywhere, and a group of the agent's own."""

import json
from datetime import timedelta

import torch
import torch.distributed as dist

from gravac_agent.errors import AgreementError, SetupError

_ROOM = 16384
"""Bytes a rank's setup may take; plain text, so no pickle crosses a wire."""


_PROBLEM_BYTES = 1024


def new_group(members: list[int], seconds: float | None, backend: str) -> dist.ProcessGroup:
    """A group of the agent's own. Its members must all call it, and nobody else.

    DDP uses its group from the training thread (buffers, unused parameters); ours is used from the exchange thread.
    On one group the two orders would mix, and differently on each rank. ``seconds`` None: the backend's time-out.
    """
    timeout = None if seconds is None else timedelta(seconds=seconds)
    group: dist.ProcessGroup | None = dist.new_group(
        members, timeout=timeout, backend=backend, use_local_synchronization=True
    )
    assert group is not None
    return group


def raise_everywhere(problem: str | None, group: dist.ProcessGroup) -> None:
    """Raise SetupError on every rank when one of them has a ``problem``, so that no rank waits for one that gave up."""
    raw = (problem or "").encode()[:_PROBLEM_BYTES]
    mine = torch.zeros(_PROBLEM_BYTES, dtype=torch.uint8)
    mine[: len(raw)] = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[: len(raw)]
    everyone = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(everyone, mine, group=group)
    for text in (bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in everyone):
        if text:
            raise SetupError(text)


def same_everywhere(setup: dict[str, object], group: dist.ProcessGroup) -> str:
    """Check that all ranks have the same ``setup``; returns it as text.

    Raises AgreementError on every rank, naming the fields that differ and each rank's values.
    """
    text = json.dumps(setup, sort_keys=True, default=str)
    raw = text.encode()
    if len(raw) > _ROOM:
        raise AgreementError(f"the agent's setup takes {len(raw)} bytes, {_ROOM} at most")
    mine = torch.zeros(_ROOM, dtype=torch.uint8)
    mine[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(everyone, mine, group=group)
    texts = [bytes(one.tolist()).rstrip(b"\0").decode() for one in everyone]
    if len(set(texts)) > 1:
        setups = [json.loads(one) for one in texts]
        fields = sorted({name for one in setups for name in one if one[name] != setups[0].get(name)})
        shown = "; ".join(
            f"{name}: " + ", ".join(f"rank {rank} has {one.get(name)!r}" for rank, one in enumerate(setups))
            for name in fields[:3]
        )
        raise AgreementError(f"all ranks need the same settings, but {shown}")
    return text
