"""Builds the parts of an agent from its settings, in agreement with the other ranks."""

import secrets
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from gravac import aggregators, kernels, memories, policies, registry
from gravac.aggregators import CompressedReduceScatter, OneShot
from gravac.collectives import ALONE, ProcessGroupCommunicator
from gravac.kernels import backend
from gravac.memories import Memory
from gravac.policies.base import Policy
from gravac.protocol import JobSpec
from gravac.signals.gain import GainTracker
from gravac.version import __version__
from gravac_agent.devices.base import Device
from gravac_agent.devices.cuda import CudaDevice
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import OwnGroups, check_equal, fail_together, gather_texts
from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.executor import Executor
from gravac_agent.exchange.hook import unused_everywhere
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.plan import Directive, Plan, next_plan
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.fsdp.attach import Slot
from gravac_agent.fsdp.model import DataParallel, ShardedModel
from gravac_agent.network import link as links
from gravac_agent.network.metered import Metered
from gravac_agent.network.probe import AggregatorBuilder
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.reporting.job_lock import JobLock
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.reporting.reporter import LocalReporter, Reporter
from gravac_agent.settings import AgentSettings, spelled
from gravac_agent.setup.compiling import compile_elsewhere
from gravac_agent.setup.describe import (
    environment,
    innermost,
    model_shape,
    optimizer_spec,
    revision,
    trained_shapes,
)
from gravac_agent.setup.plan_costs import Shards, codec_sizes, plan_costs, reached_plans, without_waits
from gravac_agent.setup.usage import sparse_parameters
from gravac_agent.streams.executor import StreamExecutor
from gravac_agent.windows.progress import Progress
from gravac_agent.windows.step_loop import StepLoop


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a running agent on one rank. ``reporter`` is None on all ranks but 0."""

    job: str
    incarnation: str
    policy: str
    """Its name."""
    rank: int
    world_size: int
    encoder: Encoder
    loop: StepLoop
    executor: Executor
    reporter: Reporter | None
    tick_group: dist.ProcessGroup
    metered: ProcessGroupCommunicator
    builder: AggregatorBuilder

    @property
    def memory(self) -> Memory:
        return self.encoder.memory


def assemble(
    module: DataParallel,
    optimizer: torch.optim.Optimizer,
    settings: AgentSettings,
    slot: Slot,
    groups: OwnGroups,
    policy: Policy | None,
    link: links.Link | None,
    job: str,
    number: int,
) -> Parts:
    """Agree with the other ranks on the setup, build the parts and start this rank's threads.

    Args:
        module: The module.
        optimizer: Steps its parameters.
        settings: The agent's settings.
        slot: The module's hook.
        groups: Makes the agent's process groups.
        policy: An instance of a policy, instead of the one in the settings.
        link: An emulated link, instead of the one in the settings.
        job: The job's name, before what several data-parallel groups add to it.
        number: Number of the agent among those that this process made for these ranks.

    Raises:
        SetupError: On all ranks, when one of them cannot start.
        AgreementError: On all ranks, when their settings differ.
    """
    members = dist.get_process_group_ranks(module.process_group)
    rank, world_size = module.process_group.rank(), len(members)
    builder = AggregatorBuilder(settings.collective, links.parse(settings.link) if link is None else link)
    sharded = module if isinstance(module, ShardedModel) else None
    exchange_group = module.process_group if sharded is None else sharded.exchange_group
    builder.sharded = sharded is not None and sharded.exchanges_rows
    builder.device = next(one.device for one in module.parameters() if one.requires_grad)
    device = device_of(builder.device)
    builder.elements = sum(one.numel() for one in module.parameters() if one.requires_grad)
    if sharded is not None and not sharded.exchanges_rows:
        builder.elements //= sharded.ranks
    with fail_together(module.process_group, settings.agreement_seconds):
        rule = _ready(settings, policy)
        if settings.job is None and world_size < dist.get_world_size():
            job += f"-ranks{members[0]}"  # several data-parallel groups: a job each
        spec = JobSpec(
            job=job,
            incarnation=secrets.token_hex(8),
            world_size=world_size,
            window_steps=settings.window,
            policy=rule.spec(),
            compressor=settings.compressor,
            memory=settings.memory,
            model=model_shape(module),
            environment=environment(module, revision() if rank == 0 else None),
            link=None if builder.link is None else builder.link.spec(),
            settings=settings.described(),
            optimizer=optimizer_spec(optimizer),
        )
        rule = rule.fitted(spec)
        codecs = checked_codecs(rule, settings.collective)
        if builder.sharded:
            check_sharded(settings.compressor, *codecs)
    groups.align(module.process_group)
    tick_group = groups.new(members, settings.agreement_seconds, "gloo")
    data_group = groups.new(
        dist.get_process_group_ranks(exchange_group), None, dist.get_backend(exchange_group)
    )
    builder.everyone = None if exchange_group.size() == world_size else tick_group
    sparse = set(sparse_parameters(module.module))
    parameters = {
        name: parameter for name, parameter in module.module.named_parameters() if name not in sparse
    }
    if sharded is not None or device is not None:
        parameters = {}  # progress needs all of a parameter's mean on each rank, in the host's memory
    coordinates = Coordinates(parameters if settings.progress else {}, settings.seed)
    setup = check_equal(
        {
            "compressor": settings.compressor,
            "codecs": codecs,
            "memory": settings.memory,
            "collective": settings.collective,
            "policy": rule.spec().model_dump(),
            "window": settings.window,
            "seed": settings.seed,
            "nonfinite": settings.nonfinite,
            "settle_steps": settings.settle_steps,
            "rescale": settings.rescale,
            "progress": settings.progress,
            "sampled": ", ".join(coordinates.names),
            "link": str(builder.link),
            "replicas": exchange_group.size(),
            "agent": number,
            "parameters": model_shape(module).model_dump(),
            "gravac": __version__,
            "plugins": registry.plugins(settings.compressor, *codecs, settings.memory, rule.spec().name),
        },
        tick_group,
    )
    # On a device the host waits for nothing, and so there is nothing to meter.
    metered = Metered(data_group) if device is None else ProcessGroupCommunicator(data_group)
    encoder = Encoder(
        settings.compressor,
        builder.build(settings.compressor, metered),
        memories.build(settings.memory),
        {codec: builder.build(codec, metered) for codec in codecs},
        gradients_stay=sharded is None,  # FSDP2 waits for each mean, and frees its buffers at once
        unused_everywhere=None if isinstance(module, ShardedModel) else unused_everywhere(module),
    )
    for aggregator in encoder.aggregators:
        builder.fit(aggregator, metered)
    built = dict(zip((None, *encoder.others), encoder.aggregators, strict=True))
    sizes = codec_sizes(built, trained_shapes(module))
    spec = spec.model_copy(update={"sizes": sizes})
    plans = reached_plans(rule.plans(settings.compressor), spec)
    if device is not None and not rule.spec().settings.get("plans"):
        plans = without_waits(plans)  # others are used only where the user lists them
    if len(plans) > 1 and world_size > 1:
        builder.measured(metered)  # what plans cost depends on it
    memory = encoder.memory
    memory.world_size = exchange_group.size()
    with fail_together(tick_group):
        if slot.leftover.nbytes():
            memory.load_state_dict(slot.leftover.state_dict())  # residual of an earlier agent on this module
    tracker = GainTracker(rule.smoothing(world_size), rule.gain_denominator())
    reporter: Reporter | None = None
    with fail_together(tick_group):
        costs = plan_costs(
            plans,
            settings.compressor,
            builder.elements,
            exchange_group.size(),
            builder.network,
            settings.collective,
            Shards(len(sharded.groups), metered.scatters_whole) if sharded and builder.sharded else None,
        )
        spec = spec.model_copy(update={"plans": costs})
        rule = rule.fitted(spec)
        start = Directive.of(rule.start().decision, codecs)
        if rank == 0:
            reporter = _reporter(spec, _placed(settings), policy)
    job = gather_texts(job if reporter is None else reporter.job, tick_group)[0]
    if sharded is not None:
        encoder.raw_mean.shard = sharded.shard or 0
    first = next_plan(start, tracker, encoder.learning_codecs())
    announcement = Announcement(f"{setup}|{builder}", first, reporter)
    tick_codec = TickCodec(rank, world_size, coordinates.size)
    executor: Executor
    if isinstance(metered, Metered):
        executor = HostExecutor(
            encoder=encoder,
            dense=slot.dense_on(data_group),
            metered=metered,
            pacer=links.Pacer(builder.link),
            tick_group=tick_group,
            tick_codec=tick_codec,
            announcement=announcement,
            sample=GradientSample(coordinates),
            seed=settings.seed,
        )
    else:
        assert device is not None
        executor = StreamExecutor(
            device=device,
            encoder=encoder,
            dense=slot.dense_on(data_group),
            ticks=metered,
            link=builder.link,
            tick_codec=tick_codec,
            announcement=announcement,
            seed=settings.seed,
        )
        for codec, aggregator in zip(encoder.codecs, encoder.aggregators, strict=True):
            if not aggregator.sync_free:
                encoder.note(
                    f"compressor={codec!r} reads the GPU in each bucket, and the host waits for it there."
                )
        if settings.progress:
            encoder.note(
                "The progress next to dense training is not measured on a GPU: the host would have to wait for it."
            )
    loop = StepLoop(
        executor=executor,
        announcement=announcement,
        group=tick_group,
        rank=rank,
        averaged=exchange_group.size(),
        encoder=encoder,
        tracker=tracker,
        plan=announcement.following,
        window_steps=settings.window,
        settle_steps=settings.settle_steps,
        progress=Progress(innermost(optimizer), parameters, coordinates, encoder.note),
        reporter=reporter,
        job=job,
        incarnation=spec.incarnation,
        stability_warning=partial(_unstable, encoder),
        rank_rows=settings.rank_rows,
        step_rows=settings.step_rows,
    )
    loop.begin_step()
    return Parts(
        job,
        spec.incarnation,
        spec.policy.name,
        rank,
        world_size,
        encoder,
        loop,
        executor,
        reporter,
        tick_group,
        metered,
        builder,
    )


def device_of(device: torch.device) -> Device | None:
    """Return the accelerator that gradients are on; None for the host's memory, where the exchange has threads instead.

    Raises:
        ValueError: There is no exchange for such a device.
    """
    if device.type == "cpu":
        return None
    if device.type == "cuda":
        return CudaDevice(torch.device("cuda", device.index or 0))
    raise ValueError(f"gradients on {device.type} are not compressed, only those on cpu and cuda")


def _ready(settings: AgentSettings, policy: Policy | None) -> Policy:
    """Check what may fail on one host alone. Returns the policy. Raises SetupError."""
    rule = policies.parse(settings.policy) if policy is None else policy
    if policy is not None and settings.controller != "none" and policy.spec().name not in policies.POLICIES:
        raise SetupError(
            f"policy {policy.spec().name!r} is not registered: pass controller=None to decide in process"
        )
    try:
        rule.check_window(settings.window)
    except ValueError as error:
        raise SetupError(str(error)) from None
    try:
        backend.compile_by(compile_elsewhere)
        kernels.use(settings.kernels)
        kernels.warm()  # the first time on a machine, compiling takes seconds
    except ImportError as error:
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


def _unstable(encoder: Encoder, plan: Plan) -> str | None:
    """Return a warning when the residual may grow without limit under this plan; None where nothing is known."""
    aggregator = encoder.aggregator_of(plan)
    if not isinstance(aggregator, OneShot | CompressedReduceScatter):
        return None
    return memories.stability(encoder.memory, aggregator.compressor, plan.cf)


def _placed(settings: AgentSettings) -> AgentSettings:
    """Return the settings with a ``data_dir`` that a later chdir does not move."""
    try:
        return settings.model_copy(update={"data_dir": settings.data_dir.absolute()})
    except FileNotFoundError:
        raise SetupError(
            f"data_dir={str(settings.data_dir)!r} is relative, and the working folder is gone: give an absolute path, "
            "or start in a folder that exists"
        ) from None


def _reporter(spec: JobSpec, settings: AgentSettings, policy: Policy | None) -> Reporter:
    """Return rank 0's reporter. Raises SetupError when another run has the job's journal."""
    asked, lock = spec.job, None
    if settings.controller in (
        "auto",
        "none",
    ):  # the journal is written here; else the controller names the job
        name, lock = JobLock.named(settings.data_dir, spec)
        spec = spec.model_copy(update={"job": name})
    if settings.controller == "none":
        return LocalReporter(spec, settings.data_dir, policy, lock, asked)
    own = settings.controller == "auto"
    steerable = settings.steering == "owner"
    return HttpReporter(
        spec,
        process=ControllerProcess(settings.data_dir, spec.job, settings.page_port, steerable)
        if own
        else None,
        url=None if own else settings.controller,
        token=settings.token,
        request_seconds=settings.request_seconds,
        fallback_windows=settings.fallback_windows,
        pinned_cf=settings.max_cf,
        lock=lock,
        asked=asked,
    )
