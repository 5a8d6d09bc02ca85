"""Agreement outside a step: all ranks can start and have the same settings, and the agent's process groups."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from gravac_agent.errors import AgreementError, SetupError, peer_error
from gravac_agent.exchange.tick import StepSums, TickCodec

log = logging.getLogger("gravac.agent")

_MAX_TEXT_BYTES = 16384
"""Longest text of a rank. Plain text, so that no pickle crosses the network."""
PART_SECONDS = 10.0
"""Longest wait for the other ranks, and for this rank's threads, at the end."""


class OwnGroups:
    """The process groups of one agent: made when it starts, destroyed when it closes.

    DDP uses its group from the training thread (buffers, unused parameters); ours are used from the exchange thread.
    On one group the two orders would mix, differently on each rank.
    """

    def __init__(self) -> None:
        self._made: list[dist.ProcessGroup] = []
        self._number = 0

    def align(self, group: dist.ProcessGroup) -> None:
        """Prepare to make groups of members of ``group``. All of them call it before they call ``new``.

        torch names a group after its ranks and the number of groups that this process is in. Where ranks are in
        different numbers of groups, such as agents of a part of the ranks, they would look for each other under
        different names. And where a group was destroyed, they would find its old addresses under the same name.
        """
        global _last_number
        mine = len(dist.distributed_c10d._world.pg_names)
        found = [text.split() for text in gather_texts(f"{mine} {_last_number}", group)]
        self._number = _last_number = 1 + max(int(number) for _, number in found)
        for _ in range(max(int(count) for count, _ in found) - mine):
            self.new([dist.get_rank()], None, "gloo")

    def new(self, members: list[int], seconds: float | None, backend: str) -> dist.ProcessGroup:
        """Make a group. All its members must call it, and no other rank. ``seconds`` None: the backend's timeout."""
        first, *others = members
        numbered = _Numbered(first)
        numbered.number = f".{self._number}"
        group: dist.ProcessGroup | None = dist.new_group(
            [numbered, *others],
            timeout=None if seconds is None else timedelta(seconds=seconds),
            backend=backend,
            use_local_synchronization=True,
        )
        assert group is not None
        numbered.number = ""  # torch returns it as a rank of the group
        self._made.append(group)
        return group

    def destroy(self) -> None:
        """Destroy them. Nothing may be in flight on them: then torch waits for the other ranks."""
        while self._made:
            try:
                dist.destroy_process_group(self._made.pop())
            except Exception:  # the trainer has destroyed all of them
                log.debug("a process group could not be destroyed", exc_info=True)

    def keep(self) -> None:
        """Keep them for the life of this process: torch would wait for what is in flight on them."""
        _kept.append(self)


class _Numbered(int):
    """A rank. torch makes the name of a group from the texts of its ranks, and this one carries a number."""

    number = ""

    def __str__(self) -> str:
        return f"{int(self)}{self.number}"


_last_number = 0
"""Of the groups made so far in this process, and in all that it made some with."""
_kept: list[OwnGroups] = []


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


def agreed_job(mine: str, given: bool, group: dist.ProcessGroup, seconds: float) -> str:
    """Return rank 0's name of the job. All ranks call it.

    Args:
        mine: This rank's name.
        given: Whether a setting gives it; else it is made of the start time.
        group: The ranks.
        seconds: Longest wait for them.

    Raises:
        AgreementError: A setting gives a rank another one.
    """
    job, *others = gather_texts(mine if given or group.rank() == 0 else "", group, seconds)
    for rank, other in enumerate(others, 1):
        if other not in ("", job):
            raise AgreementError(
                f"all ranks need the same settings, but job: rank 0 has {job!r}, rank {rank} has {other!r}"
            )
    return job


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


def part(codec: TickCodec, figures: int, group: dist.ProcessGroup) -> bool:
    """Wait until all ranks have ended their last step, so that none destroys a group that another one still uses.

    Has the form of a tick, as in ``raise_together``. Returns False when something is still in flight after
    ``PART_SECONDS``, because a rank hangs.
    """
    work = dist.all_reduce(codec.pack_status(StepSums(), figures), group=group, async_op=True)
    assert work is not None
    try:
        work.wait(timedelta(seconds=PART_SECONDS))
    except RuntimeError as error:
        log.debug("a rank did not close its agent: %s", error)
    return bool(work.is_completed())


def check_equal(setup: dict[str, object], group: dist.ProcessGroup, what: str = "settings") -> str:
    """Check that all ranks have the same ``setup``, ``what`` it says, and return it as text. All ranks call it.

    Raises AgreementError on every rank, naming the fields that differ and each rank's values.
    """
    text = json.dumps(setup, default=str)
    if len(text.encode()) > _MAX_TEXT_BYTES:
        raise AgreementError(
            f"the agent's setup takes {len(text.encode())} bytes; the most is {_MAX_TEXT_BYTES}"
        )
    found = gather_texts(text, group)
    if len(set(found)) > 1:
        setups = [json.loads(one) for one in found]
        names = dict.fromkeys(name for one in setups for name in one)  # in order
        fields = [name for name in names if any(one.get(name) != setups[0].get(name) for one in setups)]
        shown = "; ".join(
            f"{name}: " + ", ".join(f"rank {rank} has {one.get(name)!r}" for rank, one in enumerate(setups))
            for name in fields[:3]
        )
        raise AgreementError(f"all ranks need the same {what}, but {shown}")
    return text


def _raise_for(found: list[str]) -> None:
    problems = [f"rank {rank}: {text}" for rank, text in enumerate(found) if text]
    if problems:
        raise SetupError("another rank cannot start: " + "; ".join(problems[:3]))
