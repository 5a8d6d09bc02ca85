"""Agreement outside a step: all ranks can start and have the same settings, and the agent's process groups."""

import contextlib
import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.constants import default_pg_timeout

from gravac.collectives import backend_of
from gravac_agent.errors import AgreementError, PeerError, SetupError, peer_error
from gravac_agent.exchange.tick import StepSums, TickCodec
from gravac_agent.network.doubling import Doubling, Rounds

log = logging.getLogger("gravac.agent")

_MAX_TEXT_BYTES = 16384
"""Longest text of a rank. Plain text, so that no pickle crosses the network."""
LATE_SECONDS = 10.0
"""Wait for the start of another rank after which it is named."""
MOST_NAMED = 8
"""Ranks that a message names."""
ANSWER_SECONDS = 5.0
"""Longest wait for the answers of other ranks when one is lost."""
LEAVE_SECONDS = 10.0
"""Longest wait for the other ranks, and for this rank's threads, at the end."""


class OwnGroups:
    """The process groups of one agent, from its start to its end. On a GPU only two levels of links have communicators.

    With threads, the agent cannot use DDP's group. DDP issues collectives on it from the training thread (buffers,
    unused parameters), and the agent from the exchange thread. Their orders would mix, differently on each rank.
    """

    def __init__(self) -> None:
        self._made: list[dist.ProcessGroup] = []
        self._number = 0

    def align(self, group: dist.ProcessGroup) -> None:
        """Prepare to make groups of members of ``group``. All of them call it before they call ``new``.

        torch names a group after its ranks and the number of groups that this process is in. Ranks that are in
        different numbers of groups, because an agent has only a part of the ranks, would look for each other under
        different names. After a group was destroyed, they would find its old addresses under the same name.
        """
        # So the names carry a number that no member has used before, and each rank makes groups of itself alone until
        # all are in as many as the one that is in the most.
        global _last_number
        mine = len(dist.distributed_c10d._world.pg_names)
        most, last = largest([mine, _last_number], group)
        self._number = _last_number = 1 + last
        for _ in range(most - mine):
            self.new([dist.get_rank()], None, "gloo")

    def new(self, members: list[int], seconds: float | None, backend: str) -> dist.ProcessGroup:
        """Make a group. All its members must call it, and no other rank.

        Args:
            members: Their global ranks.
            seconds: Timeout of its collectives; None for the backend's own.
            backend: The backend, such as ``gloo``.
        """
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
        """Destroy the groups. Nothing may be in flight on them, or torch waits for the other ranks."""
        while self._made:
            try:
                dist.destroy_process_group(self._made.pop())
            except Exception:  # the trainer has destroyed all of them
                log.debug("a process group could not be destroyed", exc_info=True)

    def keep(self) -> None:
        """Keep the groups for the life of this process, since torch would wait for what is in flight on them."""
        _kept.append(self)


class _Numbered(int):
    """A rank whose text carries a number, because torch makes a group's name from the texts of its ranks."""

    number = ""

    def __str__(self) -> str:
        return f"{int(self)}{self.number}"


_last_number = 0
"""Largest number of a group that this process, or one that it made a group with, has made so far."""
_kept: list[OwnGroups] = []


class PresentRanks:
    """Which ranks have come to a point, by the store of their process group. This rank comes to it now.

    Args:
        group: The ranks.
        point: Its name, of which each has one.
        missed: What the others have, for the message.
    """

    def __init__(self, group: dist.ProcessGroup, point: str, missed: str) -> None:
        self._group, self._point, self._missed = group, point, missed
        with contextlib.suppress(Exception):  # only a message depends on it
            self._store.set(self._key(group.rank()), "")

    def absent(self) -> str:
        """Return what to say of the ranks that are not there yet; empty: all are, or it is not known."""
        try:
            late = self._late(range(self._group.size()))
        except Exception:
            return ""
        if not late:
            return ""
        members = dist.get_process_group_ranks(self._group)
        numbers = ", ".join(str(members[rank]) for rank in late[:MOST_NAMED])
        more = f" and {len(late) - MOST_NAMED} more" if len(late) > MOST_NAMED else ""
        ranks = f"rank {numbers} has" if len(late) == 1 else f"ranks {numbers}{more} have"
        return f"{ranks} {self._missed}"

    def _late(self, ranks: Sequence[int]) -> Sequence[int]:
        """Return which of these ranks are not there yet, by few requests where they are few."""
        if self._store.check([self._key(rank) for rank in ranks]):
            return ()
        if (half := len(ranks) // 2) == 0:
            return ranks
        return [*self._late(ranks[:half]), *self._late(ranks[half:])]

    @property
    def _store(self) -> Any:
        return dist.distributed_c10d._get_process_group_store(self._group)

    def _key(self, rank: int) -> str:
        return f"gravac/{self._point}/rank{rank}"


def starting(group: dist.ProcessGroup, number: int) -> PresentRanks:
    """Return which ranks have begun to start an agent, the one of a ``number`` among those made for these ranks."""
    return PresentRanks(
        group, f"agent{number}", "not started an Agent yet: every rank must, in the same order"
    )


def sums(
    mine: Sequence[int],
    group: dist.ProcessGroup,
    seconds: float | None = None,
    starting: PresentRanks | None = None,
) -> list[int]:
    """Return the sums over ranks of a few numbers. All ranks call it; see ``_combined``."""
    return _combined(mine, group, torch.add, seconds, starting)


def largest(mine: Sequence[int], group: dist.ProcessGroup) -> list[int]:
    """Return the largest over ranks of each of a few numbers. All ranks call it."""
    return _combined(mine, group, torch.maximum)


def by_rank(mine: int, group: dist.ProcessGroup) -> list[int]:
    """Return the numbers of all ranks, in rank order. All ranks call it."""
    numbers = [0] * group.size()
    numbers[group.rank()] = mine
    return sums(numbers, group)


def digest(text: str) -> int:
    """Return a number below 2^56 that differs between texts."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def are_equal(text: str, group: dist.ProcessGroup) -> bool:
    """Return whether all ranks have the same text. All ranks call it."""
    number = digest(text)
    most, least = largest([number, -number], group)
    return most == -least


def text_of_first(mine: str, group: dist.ProcessGroup) -> str:
    """Return rank 0's text. All ranks call it."""
    message = _message(mine, group)
    try:
        dist.broadcast(message, group=group, group_src=0)
    except RuntimeError as error:
        raise peer_error(error) from error
    return _text(message)


def gather_texts(mine: str, group: dist.ProcessGroup) -> list[str]:
    """Gather a text from every rank, only where they differ: each rank gets as many as there are. All ranks call it.

    Args:
        mine: This rank's text.
        group: The ranks.

    Returns:
        The texts in rank order.

    Raises:
        PeerError: A rank is gone.
    """
    if group.size() == 1:
        return [mine]
    message = _message(mine, group)
    everyone = [torch.empty_like(message) for _ in range(group.size())]
    try:
        dist.all_gather(everyone, message, group=group)
    except RuntimeError as error:
        raise peer_error(error) from error
    return [_text(one) for one in everyone]


def _message(text: str, group: dist.ProcessGroup) -> Tensor:
    padded = text.encode()[:_MAX_TEXT_BYTES].ljust(_MAX_TEXT_BYTES, b"\0")
    return torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(_device_of(group))


def _text(message: Tensor) -> str:
    return bytes(message.tolist()).rstrip(b"\0").decode(errors="replace")


def _combined(
    mine: Sequence[int],
    group: dist.ProcessGroup,
    combine: Callable[..., Tensor],
    seconds: float | None = None,
    starting: PresentRanks | None = None,
) -> list[int]:
    """Combine the numbers of all ranks.

    Args:
        mine: This rank's.
        group: The ranks.
        combine: ``torch.add`` or ``torch.maximum``.
        seconds: Longest wait for another rank; None for the group's own timeout.
        starting: Says which ranks are late, in the log after ``LATE_SECONDS`` and in the error.

    Raises:
        PeerError: A rank is gone.
    """
    if group.size() == 1:
        return list(mine)
    device = _device_of(group)
    numbers = torch.tensor(mine, dtype=torch.int64, device=device)
    late = threading.Timer(LATE_SECONDS, _log_who_is_late, (starting,))
    late.daemon = True
    timeout = () if seconds is None else (timedelta(seconds=seconds),)
    try:
        if starting is not None:
            late.start()
        # Neither is an all-reduce: DDP issues those on its group, and a rank without an agent would meet ours by one of
        # another size.
        if backend_of(group, device.type) == "gloo":
            Rounds(group, numbers, combine, None).wait(*timeout)
        else:
            everyone = [torch.empty_like(numbers) for _ in range(group.size())]
            work = dist.all_gather(everyone, numbers, group=group, async_op=True)
            assert work is not None
            work.wait(*timeout)
            numbers = functools.reduce(combine, everyone)
    except RuntimeError as error:
        if starting is not None and (who := starting.absent()):
            raise PeerError(f"{who}. Original error: {error}") from error
        raise peer_error(error) from error
    finally:
        late.cancel()
    return numbers.tolist()


def _log_who_is_late(starting: PresentRanks) -> None:
    if text := starting.absent():
        log.warning("%s", text)


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Return a device whose tensors the group takes: the host, or this process's GPU if it has only NCCL."""
    kinds = {device.type for device in group._device_types}
    if not kinds or "cpu" in kinds:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if "cuda" in kinds else torch.device(kinds.pop())


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the seconds after which a group gives up a collective on a device."""
    backend: Any = group._get_backend(device)
    backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    timeout = backend.options._timeout if hasattr(backend, "options") else default_pg_timeout
    return float(timeout.total_seconds())


def missing_ranks(group: dist.ProcessGroup, step: int) -> str:
    """Return which ranks are lost, in a sentence; empty: it is not known. Each rank that has given up a step calls it.

    Args:
        group: All ranks.
        step: The step's number.
    """
    waiting = PresentRanks(group, f"gave_up{step}", "not come that far")
    until = time.monotonic() + ANSWER_SECONDS
    while (text := waiting.absent()) and time.monotonic() < until:
        time.sleep(0.05)
    return text


def agreed_job(mine: str, given: bool, group: dist.ProcessGroup) -> str:
    """Return rank 0's name of the job. All ranks call it.

    Args:
        mine: This rank's name of it.
        given: Whether a setting gives that name. Otherwise it is made of the start time, which ranks need not share.
        group: The ranks.

    Raises:
        AgreementError: The settings give two ranks different names.
    """
    job = text_of_first(mine, group)
    if any(sums([given and mine != job], group)):
        for rank, other in enumerate(gather_texts(mine if given else job, group)):
            if other != job:
                raise AgreementError(
                    f"all ranks need the same settings, but job: rank 0 has {job!r}, rank {rank} has {other!r}"
                )
    return job


@contextlib.contextmanager
def fail_together(
    group: dist.ProcessGroup, seconds: float | None = None, starting: PresentRanks | None = None
) -> Iterator[None]:
    """Let a part of the setup that may fail on one rank alone fail on all, so that no rank waits for another.

    Call no collectives inside. The rank that failed raises its own error, the others a SetupError with its message.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    if any(sums([failed is not None], group, seconds, starting)):
        found = gather_texts("" if failed is None else str(failed) or type(failed).__name__, group)
        if failed is not None:
            raise failed
        _raise_for(found)


def raise_together(
    problem: str | None, call: str, codec: TickCodec, statistics: int, group: dist.ProcessGroup
) -> None:
    """Raise SetupError on all ranks if one has a ``problem``, or did not make this ``call``.

    A rank that did not make the call is in its first step, and its next collective is a tick. So this exchange has the
    form of a tick, with a fingerprint that no plan has. Both sides then find that they disagree, before any rank issues
    a collective of another size, which gloo would abort on.
    """
    status = StepSums(failed=float(problem is not None))
    words = codec.pack_status(status, statistics)
    Doubling(group).sum(words).wait()
    tick = codec.unpack(words)
    if not tick.agreed:
        raise SetupError(f"{call} was not called on all ranks; every rank calls it, before the first step")
    if tick.sums.failed:
        found = gather_texts(problem or "", group)
        if problem:
            raise SetupError(problem)
        _raise_for(found)


def leave_together(codec: TickCodec, statistics: int, group: dist.ProcessGroup) -> bool:
    """Wait until all ranks have ended their last step, so that none destroys a group that another one still uses.

    The exchange has the form of a tick, as in ``raise_together``. Return False if it is still in flight after
    ``LEAVE_SECONDS``, because a rank hangs.
    """
    work = cast("dist.Work", Doubling(group).sum(codec.pack_status(StepSums(), statistics)))
    try:
        work.wait(timedelta(seconds=LEAVE_SECONDS))
    except RuntimeError as error:
        log.debug("a rank did not close its agent: %s", error)
    return bool(work.is_completed())


def check_equal(
    setup: dict[str, object], group: dist.ProcessGroup, what: str = "settings", follows: tuple[str, ...] = ()
) -> str:
    """Check that all ranks have the same ``setup``, and return it as text. All ranks call it.

    Args:
        setup: What must be equal, by field.
        group: The ranks.
        what: What the fields are, for the message.
        follows: Fields that follow from others, which are named only where nothing else differs.

    Raises:
        AgreementError: They differ. Every rank raises it; the message names the fields and each rank's values.
    """
    text = json.dumps(setup, default=str)
    if len(text.encode()) > _MAX_TEXT_BYTES:
        raise AgreementError(
            f"the agent's setup takes {len(text.encode())} bytes; the most is {_MAX_TEXT_BYTES}"
        )
    if not are_equal(text, group):
        setups = [json.loads(one) for one in gather_texts(text, group)]
        names = dict.fromkeys(name for setup in setups for name in setup)  # in order
        fields = [name for name in names if any(setup.get(name) != setups[0].get(name) for setup in setups)]
        fields = [name for name in fields if name not in follows] or fields
        shown = "; ".join(f"{name}: {said([setup.get(name) for setup in setups])}" for name in fields[:3])
        raise AgreementError(f"all ranks need the same {what}, but {shown}")
    return text


def said(values: Sequence[object]) -> str:
    """Say which rank has which value: each of few ranks, of many rank 0 and some that differ from it."""
    few = len(values) <= MOST_NAMED
    ranks = [rank for rank, value in enumerate(values) if few or rank == 0 or value != values[0]]
    more = f" and {len(ranks) - MOST_NAMED} more ranks differ from rank 0" if len(ranks) > MOST_NAMED else ""
    return ", ".join(f"rank {rank} has {values[rank]!r}" for rank in ranks[:MOST_NAMED]) + more


def _raise_for(found: list[str]) -> None:
    problems = [f"rank {rank}: {text}" for rank, text in enumerate(found) if text]
    if problems:
        raise SetupError("another rank cannot start: " + "; ".join(problems[:3]))
