"""The first stage of a start: what the ranks exchange, and decide from it, before anything runs."""

import logging
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import nn

from gravac import aggregators, memories, policies, registry
from gravac.collectives import ALONE, ProcessGroupCommunicator, backend_of, cost
from gravac.kernels.backend import gpu_kernels
from gravac.memories import Memory
from gravac.policies.base import Policy
from gravac.protocol import JobSpec, NetworkSpec
from gravac.signals.gain import GainTracker
from gravac.version import __version__
from gravac_agent.devices.base import Device
from gravac_agent.devices.cuda import CudaDevice
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import (
    OwnGroups,
    by_rank,
    check_equal,
    digest,
    fail_together,
    timeout_of,
)
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.hook import unused_everywhere
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.exchange.plan import Directive
from gravac_agent.exchange.sample import Coordinates
from gravac_agent.exchange.step import SEED
from gravac_agent.fsdp.model import DataParallel, ShardedModel
from gravac_agent.fsdp.pieces import divided
from gravac_agent.fsdp.replicas import Replicas
from gravac_agent.network import link as links
from gravac_agent.network.hosts import link_name
from gravac_agent.network.metered import Metered
from gravac_agent.network.probe import AggregatorBuilder
from gravac_agent.settings import AgentSettings, spelled
from gravac_agent.setup import compiling, levels
from gravac_agent.setup.coding_times import Gradient, measure_coding, with_coding
from gravac_agent.setup.describe import (
    bucket_count,
    environment,
    model_shape,
    optimizer_spec,
    revision,
    trained_shapes,
)
from gravac_agent.setup.plan_costs import (
    ShardedGradient,
    codec_sizes,
    plan_costs,
    reached_plans,
    without_waits,
)
from gravac_agent.setup.usage import Scaler, sparse_parameters
from gravac_agent.sinks import Sink
from gravac_agent.streams.groups import served

log = logging.getLogger("gravac.agent")

EQUAL = {
    "compressor",
    "memory",
    "collective",
    "levels",
    "window",
    "nonfinite",
}
"""Settings that all ranks need alike. They may differ in the others, such as the seconds that a rank waits."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for, checked.

    Attributes:
        settings: The agent's settings.
        policy: An instance of a policy, instead of the one in the settings.
        link: An emulated link, instead of the one in the settings.
        scaler: Scaler as in ``Agent``.
        replicate: Ranks with the same shard, as in ``Agent``.
        named: Whether the job's name was given to this agent, and not found in the environment.
        number: Number of the agent among those that this process made for these ranks.
        sinks: Sinks of objects that the user gave, besides those in the settings.
    """

    settings: AgentSettings
    policy: Policy | None
    link: links.Link | None
    scaler: Scaler | None
    replicate: Replicas | None
    named: bool
    number: int
    sinks: tuple[Sink, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know of the job that begins, and what this one built to find it out."""

    spec: JobSpec
    start: Directive
    """What the ranks do until the first decision."""
    text: str
    """The settings of all ranks, a part of the fingerprint of each plan."""
    tick_group: dist.ProcessGroup
    metered: ProcessGroupCommunicator
    """The ranks that average."""
    ticks: ProcessGroupCommunicator
    """The ranks that follow one plan, for ticks of tensors on a device."""
    device: Device | None
    """The accelerator that gradients are on; None: the host's memory."""
    builder: AggregatorBuilder
    channels: Channels
    tracker: GainTracker
    followed: Mapping[str, nn.Parameter]
    """Parameters whose progress can be measured."""
    coordinates: Coordinates
    """Their sample."""
    host: HostLevel | None
    """Divides buckets among the ranks of this host; None: nobody does."""
    links: str
    """What the ranks found out about the links between them, for log and journal; empty: nothing to speak of."""


def agree(
    module: DataParallel,
    optimizers: Sequence[torch.optim.Optimizer],
    asked: Asked,
    leftover: Memory,
    groups: OwnGroups,
    job: str,
) -> Agreement:
    """Compare settings with the other ranks, measure the network with them, and find what plans cost on it.

    Args:
        module: The module.
        optimizers: Step its parameters.
        asked: What the user asked for.
        leftover: The residual of an earlier agent on this module.
        groups: Makes the agent's process groups.
        job: The job's name, before what several data-parallel groups add to it.

    Raises:
        SetupError: On all ranks, when one of them cannot start.
        AgreementError: On all ranks, when their settings differ.
    """
    settings, sharded = asked.settings, module if isinstance(module, ShardedModel) else None
    exchange_group = module.process_group if sharded is None else sharded.exchange_group
    averaged = exchange_group.size()
    by_rows = sharded is not None and sharded.exchanges_rows
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    link = links.parse(settings.link) if asked.link is None else asked.link
    builder = AggregatorBuilder(settings.collective, link, sharded=by_rows, device=trained[0].device)
    device = device_of(builder.device)
    # What may fail on one host alone comes before the first collective, in which the others would wait for it.
    with fail_together(module.process_group, settings.agreement_seconds):
        rule = _ready(settings, asked.policy, builder.device)
        spec = _spec(module, optimizers, settings, rule, link, job)
        builder.aged = spec.aged
        rule = rule.fitted(spec)
        codecs = checked_codecs(rule, settings.collective)
        if by_rows:
            check_sharded(settings.compressor, *codecs)
        levels.check_divides(settings.levels, spec.world_size)
    groups.align(module.process_group)
    members = dist.get_process_group_ranks(module.process_group)
    tick_group = groups.new(members, settings.agreement_seconds, "gloo")
    # On a device one thread issues all collectives, the trainer's too, so DDP's own group keeps their order. A second
    # NCCL communicator could be in flight beside it, and making one waits for ranks that have no part in it where
    # ``init_process_group`` has bound a device.
    if device is not None:
        device.give_up_before(timeout_of(exchange_group, device.device))
    followed: dict[str, nn.Parameter] = {}
    # Progress needs all of a parameter's mean on each rank, in the host's memory.
    if sharded is None and device is None:
        sparse = set(sparse_parameters(module.module))
        named = module.module.named_parameters()
        followed = {name: parameter for name, parameter in named if name not in sparse}
    compiled = device is not None and gpu_kernels(device.device)
    coordinates = Coordinates(followed, SEED)
    # A difference in one of these would become collectives of different sizes, in which gloo aborts and NCCL hangs.
    text = check_equal(
        settings.model_dump(include=EQUAL)
        | {
            "codecs": codecs,
            "policy": rule.spec().model_dump(),
            "sampled": ", ".join(coordinates.places),
            "link": str(builder.link),
            "replicas": averaged,
            "agent": asked.number,
            "parameters": spec.model.model_dump(),
            "optimizer": spec.optimizer
            and spec.optimizer.name,  # torch's AdamW and gravac.optim's step differently
            "kind of optimizer": spec.optimizer_kind,  # collectives follow from it
            "gravac": __version__,
            "Triton kernels": compiled,  # they make other messages
            "plugins": registry.plugins(settings.compressor, *codecs, settings.memory, rule.spec().name),
        },
        tick_group,
        follows=("codecs", "sampled"),
    )
    obstacle = levels.obstacle(trained, sharded is not None and sharded.shard_group is not None)
    # What sends no fewer bytes stays plain DDP's to the bit.
    asked_for = (
        levels.FLAT if settings.levels == levels.AUTO and rule.largest_cf() == 1.0 else settings.levels
    )
    two, said = levels.choose(asked_for, obstacle, tick_group, groups, exchange_group, device)
    host, data_group, inside_seconds = None, exchange_group, 0.0
    if two is not None:
        host, data_group = two.host, two.group
        builder.network = None if link is not None else two.between
        spec = spec.model_copy(update={"hosts": two.spec()})
    averaged = data_group.size()
    if device is None and two is None:
        ranks = dist.get_process_group_ranks(exchange_group)
        data_group = groups.new(ranks, None, backend_of(exchange_group, "cpu"))
    shards = 1 if sharded is None or by_rows else sharded.ranks
    shards = shards if host is None else host.ranks
    elements = builder.elements = sum(parameter.numel() for parameter in trained) // shards
    if two is not None:
        inside_seconds = cost.all_reduce(two.inside, shards, trained[0].itemsize * shards * elements)
    builder.everyone = None if averaged == spec.world_size else tick_group
    first = dist.get_process_group_ranks(data_group)[0]  # names the group that a rank exchanges with
    sharing = max(Counter(by_rank(digest(f"{first} {link_name()}"), tick_group)).values())
    builder.ranks_per_link = sharing if sharing < averaged else 1  # else there is no link between hosts
    # On a device the host waits for nothing, and so there is nothing to meter.
    metered = (
        Metered(data_group) if device is None else ProcessGroupCommunicator(data_group, device.device.type)
    )
    ticks = metered
    if device is not None and averaged < spec.world_size:
        ticks = ProcessGroupCommunicator(module.process_group, device.device.type)
    every = (settings.compressor, *codecs)
    channels = Channels(
        memories.build(settings.memory),
        every,
        tuple(builder.build(codec, metered) for codec in every),
        gradients_stay=sharded is None,  # FSDP2 waits for each mean, and frees its buffers at once
        unused_everywhere=None if isinstance(module, ShardedModel) else unused_everywhere(module),
    )
    channels.memory.world_size = averaged
    if host is not None:
        channels.raw_mean.shard = host.number
    elif sharded is not None:
        channels.raw_mean.shard = sharded.shard or 0
    for aggregator in channels.aggregators:
        builder.fit(aggregator, metered)
    tracker = GainTracker(rule.smoothing(spec.world_size), rule.gain_denominator())
    built = dict(zip((None, *codecs), channels.aggregators, strict=True))
    spec = spec.model_copy(update={"sizes": codec_sizes(built, trained_shapes(module))})
    # A codec may reach few CFs: a plan is named after the one that it sends.
    plans = reached_plans(rule.plans(settings.compressor), spec)
    if device is not None and not rule.spec().settings.get("plans"):
        plans = without_waits(plans)  # others are used only where the user lists them
    if len(plans) > 1 and spec.world_size > 1:
        builder.measured(metered)  # what plans cost depends on it
    held = leftover.state_dict()
    if host is not None:
        held = divided(held, host, trained_shapes(module))
    with fail_together(tick_group):
        if held:
            channels.memory.load_state_dict(held)
        costs = plan_costs(
            plans,
            settings.compressor,
            elements,
            averaged,
            builder.network,
            settings.collective,
            ShardedGradient(len(sharded.groups), metered.scatters_whole) if sharded and by_rows else None,
            spec.optimizer_kind,
            spec.memory.partition(":")[0] != "none",
            trained[0].dtype if compiled and sharded is None and served(channels) else None,
            inside_seconds,
            builder.aged,
        )
        gradient = Gradient(
            elements=elements,
            buckets=bucket_count(module, trained),
            dtype=trained[0].dtype,
            device=device,
        )
        measured = costs if builder.network is not None else ()
        coding = measure_coding(measured, settings.compressor, settings.memory, gradient, averaged)
    if coding:
        costs = with_coding(costs, coding, tick_group)
    network = None
    # An emulated link, and the one between hosts, have fields of their own.
    if builder.network is not None and builder.link is None and host is None:
        network = NetworkSpec(**asdict(builder.network))
    spec = spec.model_copy(update={"plans": costs, "network": network})
    with fail_together(tick_group):
        start = Directive.of(rule.fitted(spec).start().decision, codecs)
    return Agreement(
        spec,
        start,
        text,
        tick_group,
        metered,
        ticks,
        device,
        builder,
        channels,
        tracker,
        followed,
        coordinates,
        host,
        said,
    )


def _spec(
    module: DataParallel,
    optimizers: Sequence[torch.optim.Optimizer],
    settings: AgentSettings,
    rule: Policy,
    link: links.Link | None,
    job: str,
) -> JobSpec:
    members = dist.get_process_group_ranks(module.process_group)
    if settings.job is None and len(members) < dist.get_world_size():
        job += f"-ranks{members[0]}"  # several data-parallel groups: a job each
    return JobSpec(
        job=job,
        incarnation=secrets.token_hex(8),
        world_size=len(members),
        window_steps=settings.window,
        policy=rule.spec(),
        compressor=settings.compressor,
        memory=settings.memory,
        model=model_shape(module),
        environment=environment(module, revision() if module.process_group.rank() == 0 else None),
        link=None if link is None else link.spec(),
        settings=settings.described(),
        optimizer=optimizer_spec(*optimizers),
    )


def device_of(device: torch.device) -> Device | None:
    """Return the accelerator that gradients are on; None for the host's memory, where the exchange has threads instead.

    Raises:
        ValueError: There is no exchange for such a device.
    """
    if device.type == "cpu":
        return None
    if device.type == "cuda":
        return CudaDevice(device)
    raise ValueError(f"gradients on {device.type} are not compressed, only those on cpu and cuda")


def _ready(settings: AgentSettings, policy: Policy | None, device: torch.device) -> Policy:
    """Check what may fail on one host alone, and return the policy. Raises SetupError."""
    rule = policies.parse(settings.policy) if policy is None else policy
    if policy is not None and settings.controller != "none" and policy.spec().name not in policies.POLICIES:
        raise SetupError(
            f"policy {policy.spec().name!r} is not registered: pass controller=None to decide in process"
        )
    try:
        rule.check_window(settings.window)
        compiling.warm(device, settings.agreement_seconds / 2)
    except (ValueError, ImportError) as error:
        raise SetupError(str(error)) from None
    return rule


def checked_codecs(policy: Policy, collective: str) -> tuple[str, ...]:
    """Return the codecs that the policy may choose, checked. Raises SetupError."""
    codecs = policy.codecs()
    for text in codecs:
        try:
            if spelled(text) != text:
                raise ValueError(f"write {spelled(text)!r}, without blanks")
            aggregators.parse(text, collective)
        except ValueError as error:
            raise SetupError(
                f"policy {policy.spec().name!r} may choose codec {text!r}, which cannot be built: {error}"
            ) from None
    if len(set(codecs)) < len(codecs):
        raise SetupError(f"policy {policy.spec().name!r} lists a codec twice: {', '.join(codecs)}")
    return codecs


def check_sharded(*compressors: str) -> None:
    """Check that codecs can ride a reduce-scatter. Raises SetupError."""
    for text in compressors:
        try:
            aggregators.build_sharded(text, ALONE)
        except ValueError as error:
            raise SetupError(str(error)) from None
