"""What ranks settle before the first step: that all can start, the same settings, and a group of the agent's own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from gravac_agent.errors import AgreementError, SetupError, peer_error
from gravac_agent.exchange.tick import StepSums, TickCodec

_ROOM = 16384
"""Bytes a rank's setup may take; plain text, so no pickle crosses a wire."""


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


def texts(mine: str, group: dist.ProcessGroup, seconds: float | None = None) -> list[str]:
    """Every rank's text, in rank order. All ranks call it. ``seconds`` None: the group's own time-out.

    Raises PeerError when a rank is gone.
    """
    if group.size() == 1:
        return [mine]
    raw = mine.encode()[:_ROOM]
    message = torch.zeros(_ROOM, dtype=torch.uint8)
    message[: len(raw)] = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[: len(raw)]
    everyone = [torch.empty_like(message) for _ in range(group.size())]
    try:
        work = dist.all_gather(everyone, message, group=group, async_op=True)
        work.wait() if seconds is None else work.wait(timedelta(seconds=seconds))
    except RuntimeError as error:
        raise peer_error(error) from error
    return [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in everyone]


@contextmanager
def together(group: dist.ProcessGroup, seconds: float | None = None) -> Iterator[None]:
    """A part of the setup that may fail on one rank alone: then it fails on all, and none waits for the others.

    No collectives inside. The rank that failed raises its own error, the others a SetupError with its message.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    found = texts("" if failed is None else str(failed) or type(failed).__name__, group, seconds)
    if failed is not None:
        raise failed
    _raise_for(found)


def verdict(problem: str | None, call: str, codec: TickCodec, figures: int, group: dist.ProcessGroup) -> None:
    """Raise SetupError on all ranks when one has a ``problem``, or did not make this ``call``.

    A rank that did not is in its first step. So this looks like a tick, whose fingerprint is that of no plan: that
    rank, too, learns that ranks disagree, in place of a collective of another size.
    """
    sums = StepSums(failed=float(problem is not None))
    words = codec.pack_verdict(sums, figures)
    dist.all_reduce(words, group=group)
    tick = codec.unpack(words)
    if not tick.agreed:
        raise SetupError(f"{call} was not called on all ranks; every rank calls it, before the first step")
    if tick.sums.failed:
        found = texts(problem or "", group)
        if problem:
            raise SetupError(problem)
        _raise_for(found)


def same_everywhere(setup: dict[str, object], group: dist.ProcessGroup) -> str:
    """Check that all ranks have the same ``setup``; returns it as text.

    Raises AgreementError on every rank, naming the fields that differ and each rank's values.
    """
    text = json.dumps(setup, sort_keys=True, default=str)
    if len(text.encode()) > _ROOM:
        raise AgreementError(f"the agent's setup takes {len(text.encode())} bytes, {_ROOM} at most")
    found = texts(text, group)
    if len(set(found)) > 1:
        setups = [json.loads(one) for one in found]
        fields = sorted({name for one in setups for name in one if one[name] != setups[0].get(name)})
        shown = "; ".join(
            f"{name}: " + ", ".join(f"rank {rank} has {one.get(name)!r}" for rank, one in enumerate(setups))
            for name in fields[:3]
        )
        raise AgreementError(f"all ranks need the same settings, but {shown}")
    return text


def _raise_for(found: list[str]) -> None:
    problems = [f"rank {rank}: {text}" for rank, text in enumerate(found) if text]
    if problems:
        raise SetupError("another rank cannot start: " + "; ".join(problems[:3]))
