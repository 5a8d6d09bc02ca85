"""Whether the ranks of a host divide buckets among themselves: which ranks those are, and what is in the way."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from gravac.collectives import Network, ProcessGroupCommunicator, backend_of
from gravac.protocol import HostLinks
from gravac_agent.devices import Device
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import OwnGroups, by_rank, digest, timeout_of
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.network.doubling import Doubling
from gravac_agent.network.hosts import link_name
from gravac_agent.network.metered import Metered
from gravac_agent.network.probe import AGREE, Ring, measure

AUTO, FLAT, HOST = "auto", "flat", "host"


class TwoLevels(NamedTuple):
    """The links of this rank."""

    host: HostLevel
    group: dist.ProcessGroup
    """The ranks of other hosts that have the same pieces as this one."""
    inside: Network
    """Link as measured among the ranks of a host."""
    between: Network
    """Link as measured among the ranks of a group, while all groups sent."""

    def spec(self) -> HostLinks:
        """Return the record of the links for the journal."""
        return HostLinks(
            hosts=self.group.size(),
            ranks=self.host.ranks,
            inside_latency_seconds=self.inside.latency_seconds,
            inside_bytes_per_second=self.inside.bytes_per_second,
            between_latency_seconds=self.between.latency_seconds,
            between_bytes_per_second=self.between.bytes_per_second,
        )


def check_divides(levels: str, ranks: int) -> None:
    """Check that ranks can be divided into groups of a number that a setting names. Raises SetupError."""
    if levels in (AUTO, FLAT, HOST):
        return
    able = [number for number in range(2, ranks) if ranks % number == 0]
    if int(levels) not in able:
        close = min(able, key=lambda number: abs(number - int(levels)), default=None)
        meant = "" if close is None else f" (did you mean levels={close}?)"
        raise SetupError(
            f"levels={levels} does not divide {ranks} ranks into several groups of several{meant}: write "
            f"{', '.join(map(str, (*able, repr(HOST))))} or {FLAT!r}"
        )


def obstacle(trained: Sequence[torch.Tensor], sharded: bool) -> str:
    """Return what keeps ranks from dividing these gradients, as the end of a sentence; empty: nothing does."""
    if sharded:
        return "FSDP2 divides gradients by itself, within a host under HSDP (docs/fsdp.md)"
    if any(one.dtype == torch.float16 for one in trained):
        return (
            "some gradients are in float16, where the mean of one piece may overflow and that of others not"
        )
    return ""


def hosts_of(levels: str, names: Sequence[Hashable]) -> tuple[list[list[int]], str]:
    """Return the ranks of each host, and what keeps them from dividing gradients; see ``obstacle``.

    Args:
        levels: The setting, other than ``flat``.
        names: By rank, what its host is known by.
    """
    if levels not in (AUTO, HOST):
        together = int(levels)
        return [list(range(first, first + together)) for first in range(0, len(names), together)], ""
    found: dict[Hashable, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    hosts, sizes = list(found.values()), sorted({len(ranks) for ranks in found.values()})
    if len(hosts) == 1:
        return hosts, "all ranks are on one host"
    if sizes == [1]:
        return hosts, "each host has one rank"
    return hosts, "" if len(sizes) == 1 else f"a host has {sizes[0]} ranks and another {sizes[-1]}"


def choose(
    levels: str,
    obstacle: str,
    group: dist.ProcessGroup,
    groups: OwnGroups,
    exchange_group: dist.ProcessGroup,
    device: Device | None,
) -> tuple[TwoLevels | None, str]:
    """Return the links, and a sentence for log and journal. All ranks call it, after ``OwnGroups.align``.

    Args:
        levels: The setting. ``auto`` takes two levels where the link between hosts is the slower one, and on a device
            it never does.
        obstacle: As the function of that name returns it, equal on all ranks.
        group: The ranks, without those of other data-parallel groups.
        groups: Makes the groups.
        exchange_group: The trainer's group of these ranks.
        device: The accelerator that gradients are on; None: the host's memory.

    Returns:
        None where each rank exchanges whole gradients.
    """
    if levels == FLAT or (levels == AUTO and device is not None):  # it has not run on a GPU
        return None, ""
    if device is not None and not obstacle:
        obstacle = _unreached(group)
    hosts = list[list[int]]()
    if not obstacle:
        hosts, obstacle = hosts_of(levels, by_rank(digest(link_name()), group))
    if obstacle:
        # With ``auto`` this is nothing to speak of, but where hosts differ the user may not know it.
        expected = levels == AUTO and len({len(ranks) for ranks in hosts}) < 2
        said = f"levels={levels!r} is flat here, since {obstacle}: each rank exchanges whole gradients."
        return None, "" if expected else said
    two = _connected(hosts, group, groups, exchange_group, device)
    links = f"a rank has {two.inside} inside a host and {two.between} between hosts, while all ranks send"
    if levels == AUTO and two.inside.bytes_per_second < AGREE * two.between.bytes_per_second:
        return None, (
            f"levels='auto' is flat here, since the link between hosts is not the slower one: {links}. Each rank "
            "exchanges whole gradients."
        )
    return two, (
        f"{len(hosts)} hosts of {two.host.ranks} ranks: each rank exchanges 1/{two.host.ranks} of a gradient with "
        f"other hosts, after a reduce-scatter inside its own. By measurement {links}."
    )


def _unreached(group: dist.ProcessGroup) -> str:
    """Return what keeps ranks from making groups on a device, as ``obstacle`` does."""
    # Where a device is bound, torch splits NCCL's communicator of all ranks, in which each of them has to take part.
    bound = getattr(dist.group.WORLD, "bound_device_id", None) is not None
    if bound and group.size() < dist.get_world_size():
        return (
            "init_process_group was given a device_id, so that ranks without this agent would have to make its groups, "
            "too"
        )
    return ""


def _connected(
    hosts: Sequence[Sequence[int]],
    group: dist.ProcessGroup,
    groups: OwnGroups,
    exchange_group: dist.ProcessGroup,
    device: Device | None,
) -> TwoLevels:
    members = dist.get_process_group_ranks(group)
    (mine,) = (ranks for ranks in hosts if group.rank() in ranks)
    place = mine.index(group.rank())
    inside, others = [members[rank] for rank in mine], [members[ranks[place]] for ranks in hosts]
    # Not by the metered one: this is no time of a step.
    everyone = Doubling(group)
    if device is None:
        gradients, means = (groups.new(inside, None, "gloo") for _ in range(2))
        between = groups.new(others, None, "gloo")
        rings = [Ring(ProcessGroupCommunicator(one), everyone=everyone) for one in (gradients, between)]
        level = HostLevel(Metered(gradients), ProcessGroupCommunicator(means))
    else:
        # Two NCCL communicators in flight wait for each other where ranks start their kernels in different orders. Here
        # each collective follows, on the side stream, what the one before it followed: one order on all ranks. So the
        # means need no communicator of their own.
        kind = device.device.type
        backend, seconds = backend_of(exchange_group, kind), timeout_of(exchange_group, device.device)
        gradients, between = (groups.new(ranks, seconds, backend) for ranks in (inside, others))
        ends = [ProcessGroupCommunicator(one, kind) for one in (gradients, between)]
        rings = [Ring(one, device.device, everyone) for one in ends]
        level = HostLevel(ends[0], ends[0], device)
    return TwoLevels(level, between, *map(measure, rings))
