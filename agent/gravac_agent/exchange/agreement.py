"""Agreement outside a step: all ranks can start and have the same settings, and the agent's process groups."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from gravac_agent.errors import AgreementError, SetupError, peer_error
from gravac_agent.exchange.tick import StepSums, TickCodec

_MAX_TEXT_BYTES = 16384
"""Longest text of a rank. Plain text, so that no pickle crosses the network."""


def new_group(members: list[int], seconds: float | None, backend: str) -> dist.ProcessGroup:
    """Make a process group for the agent alone. All its members must call it, and no other rank.

    DDP uses its group from the training thread (buffers, unused parameters); ours is used from the exchange thread.
    On one group the two orders would mix, differently on each rank. ``seconds`` None: the backend's timeout.
    """
    timeout = None if seconds is None else timedelta(seconds=seconds)
    group: dist.ProcessGroup | None = dist.new_group(
        members, timeout=timeout, backend=backend, use_local_synchronization=True
    )
    assert group is not None
    return group


def align_groups(group: dist.ProcessGroup) -> None:
    """Give all members of ``group`` the same number of process groups. All of them call it before ``new_group``.

    torch names a group after its ranks and the number of groups that this process is in. Where ranks are in different
    numbers of groups, such as agents of a part of the ranks, they would look for each other under different names.
    """
    mine = len(dist.distributed_c10d._world.pg_names)
    most = max(int(count) for count in gather_texts(str(mine), group))
    for _ in range(most - mine):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def gather_texts(mine: str, group: dist.ProcessGroup, seconds: float | None = None) -> list[str]:
    """Return every rank's text, in rank order. All ranks call it. ``seconds`` None: the group's own timeout.

    Raises PeerError when a rank is gone.
    """
    if group.size() == 1:
        return [mine]
    raw = mine.encode()[:_MAX_TEXT_BYTES]
    text = torch.zeros(_MAX_TEXT_BYTES, dtype=torch.uint8)
    text[: len(raw)] = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[: len(raw)]
    message = text.to(_device_of(group))
    everyone = [torch.empty_like(message) for _ in range(group.size())]
    try:
        work = dist.all_gather(everyone, message, group=group, async_op=True)
        work.wait() if seconds is None else work.wait(timedelta(seconds=seconds))
    except RuntimeError as error:
        raise peer_error(error) from error
    return [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in everyone]


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Return a device whose tensors the group takes: the host, or this process's GPU where it has only NCCL."""
    kinds = {device.type for device in group._device_types}
    if not kinds or "cpu" in kinds:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if "cuda" in kinds else torch.device(kinds.pop())


@contextmanager
def fail_together(group: dist.ProcessGroup, seconds: float | None = None) -> Iterator[None]:
    """Wrap a part of the setup that may fail on one rank alone: then it fails on all, and no rank waits for the others.

    Call no collectives inside. The rank that failed raises its own error, the others a SetupError with its message.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    found = gather_texts("" if failed is None else str(failed) or type(failed).__name__, group, seconds)
    if failed is not None:
        raise failed
    _raise_for(found)


def raise_together(
    problem: str | None, call: str, codec: TickCodec, figures: int, group: dist.ProcessGroup
) -> None:
    """Raise SetupError on all ranks when one has a ``problem``, or did not make this ``call``.

    A rank that did not call is in its first step. So this exchange has the form of a tick, with a fingerprint that no
    plan has: that rank, too, finds that ranks disagree, instead of issuing a collective of another size.
    """
    sums = StepSums(failed=float(problem is not None))
    words = codec.pack_status(sums, figures)
    dist.all_reduce(words, group=group)
    tick = codec.unpack(words)
    if not tick.agreed:
        raise SetupError(f"{call} was not called on all ranks; every rank calls it, before the first step")
    if tick.sums.failed:
        found = gather_texts(problem or "", group)
        if problem:
            raise SetupError(problem)
        _raise_for(found)


def check_equal(setup: dict[str, object], group: dist.ProcessGroup) -> str:
    """Check that all ranks have the same ``setup``, and return it as text. All ranks call it.

    Raises AgreementError on every rank, naming the fields that differ and each rank's values.
    """
    text = json.dumps(setup, sort_keys=True, default=str)
    if len(text.encode()) > _MAX_TEXT_BYTES:
        raise AgreementError(
            f"the agent's setup takes {len(text.encode())} bytes; the most is {_MAX_TEXT_BYTES}"
        )
    found = gather_texts(text, group)
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
