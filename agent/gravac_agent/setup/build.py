"""Putting one agent together from its settings."""

import secrets
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac import kernels, memories, policies, registry
from gravac.aggregators import OneShot
from gravac.collectives import AllReduce
from gravac.memories import Memory
from gravac.policies.base import Policy
from gravac.protocol import JobSpec
from gravac.signals.gain import GainTracker
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agree import new_group, same_everywhere, together
from gravac_agent.exchange.encode import Encoder
from gravac_agent.exchange.engine import Engine
from gravac_agent.exchange.hook import HookSlot
from gravac_agent.exchange.plan import Directive
from gravac_agent.exchange.tick import TickCodec
from gravac_agent.network import link as links
from gravac_agent.network.metered import Metered
from gravac_agent.network.wire import Wire
from gravac_agent.reporting.desk import Desk, LocalDesk
from gravac_agent.reporting.joblock import JobLock
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.reporting.remote import RemoteDesk
from gravac_agent.settings import AgentSettings
from gravac_agent.setup.describe import environment, job_name, model_shape
from gravac_agent.windows.loop import StepLoop


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a running agent owns on one rank. ``desk`` is None on all ranks but 0."""

    job: str
    incarnation: str
    rank: int
    world_size: int
    encoder: Encoder
    loop: StepLoop
    engine: Engine
    desk: Desk | None
    tick_group: dist.ProcessGroup
    metered: Metered
    wire: Wire

    @property
    def memory(self) -> Memory:
        return self.encoder.memory


def assemble(
    module: DistributedDataParallel,
    settings: AgentSettings,
    slot: HookSlot,
    policy: Policy | None,
    link: links.Link | None,
) -> Parts:
    """Agree with the other ranks on the setup and start this rank's threads. Raises SetupError or AgreementError."""
    members = dist.get_process_group_ranks(module.process_group)
    rank, world_size = module.process_group.rank(), len(members)
    with together(module.process_group, settings.agreement_seconds):
        rule = _ready(settings, policy)
    wire = Wire(settings.collective, links.parse(settings.link) if link is None else link)
    wire.elements = sum(one.numel() for one in module.parameters() if one.requires_grad)
    tick_group = new_group(members, settings.agreement_seconds, "gloo")
    data_group = new_group(members, None, dist.get_backend(module.process_group))
    setup = same_everywhere(
        {
            "compressor": settings.compressor,
            "memory": settings.memory,
            "collective": settings.collective,
            "policy": rule.spec().model_dump(),
            "window": settings.window,
            "seed": settings.seed,
            "nonfinite": settings.nonfinite,
            "settle_steps": settings.settle_steps,
            "rescale": settings.rescale,
            "link": str(wire.link),
            "parameters": model_shape(module).model_dump(),
            "gravac": gravac.__version__,
            "plugins": registry.plugins(settings.compressor, settings.memory, rule.spec().name),
        },
        tick_group,
    )
    metered = Metered(data_group)
    aggregator = wire.build(settings.compressor, metered)
    wire.settle(aggregator, metered)
    encoder = Encoder(settings.compressor, aggregator, memories.build(settings.memory))
    memory = encoder.memory
    memory.world_size = world_size
    with together(tick_group):
        if slot.leftover.nbytes():
            memory.load_state_dict(
                slot.leftover.state_dict()
            )  # an earlier agent on this module still owes this
    tracker = GainTracker(rule.smoothing(world_size))
    incarnation = secrets.token_hex(8)
    job = settings.job or job_name()
    if settings.job is None and world_size < dist.get_world_size():
        job += f"-ranks{members[0]}"  # several data-parallel groups: a job each
    desk: Desk | None = None
    start = Directive.of(rule.start().decision)
    with together(tick_group):
        if rank == 0:
            spec = JobSpec(
                job=job,
                incarnation=incarnation,
                world_size=world_size,
                window_steps=settings.window,
                policy=rule.spec(),
                compressor=settings.compressor,
                memory=settings.memory,
                model=model_shape(module),
                environment=environment(module),
                link=None if wire.link is None else wire.link.spec(),
                settings=settings.described(),
            )
            desk = _desk(spec, settings, policy, _job_lock(job, settings))
    loop = StepLoop(
        group=tick_group,
        rank=rank,
        encoder=encoder,
        tracker=tracker,
        setup=f"{setup}|{wire}",
        window_steps=settings.window,
        settle_steps=settings.settle_steps,
        desk=desk,
        directive=start,
        job=job,
        incarnation=incarnation,
        unstable=partial(_unstable, encoder),
        rank_rows=settings.rank_rows,
        step_rows=settings.step_rows,
    )
    engine = Engine(
        encoder=encoder,
        dense=AllReduce(data_group),
        metered=metered,
        pacer=links.Pacer(wire.link),
        tick_group=tick_group,
        codec=TickCodec(rank, world_size),
        announce=loop.announce,
        surveyed=loop.surveyed,
        seed=settings.seed,
    )
    engine.begin(loop.plan, 0)
    return Parts(job, incarnation, rank, world_size, encoder, loop, engine, desk, tick_group, metered, wire)


def _ready(settings: AgentSettings, policy: Policy | None) -> Policy:
    """What may fail on one host alone, and what does on all. Returns the decision rule."""
    rule = policies.parse(settings.policy) if policy is None else policy
    if policy is not None and settings.controller != "none" and policy.spec().name not in policies.POLICIES:
        raise SetupError(f"policy {policy.spec().name!r} is not registered: it needs controller=None")
    try:
        kernels.use(settings.kernels)
        kernels.warm()  # compiling takes seconds the first time on a machine: not in a step
    except ImportError as error:
        raise SetupError(str(error)) from None
    return rule


def _unstable(encoder: Encoder, cf: float) -> str | None:
    """Where nothing is proven of an aggregator, nothing is said."""
    aggregator = encoder.aggregator
    if not isinstance(aggregator, OneShot):
        return None
    return memories.stability(encoder.memory, aggregator.compressor, cf)


def _job_lock(job: str, settings: AgentSettings) -> JobLock | None:
    """Keep other runs off the journal, where it is this process that sees to it being written. Raises SetupError."""
    writes = settings.controller in ("auto", "none")
    return JobLock.acquire(settings.data_dir, job) if writes else None


def _desk(spec: JobSpec, settings: AgentSettings, policy: Policy | None, lock: JobLock | None) -> Desk:
    if settings.controller == "none":
        return LocalDesk(spec, settings.data_dir, policy, lock)
    own = settings.controller == "auto"
    steerable = settings.steering == "owner"
    return RemoteDesk(
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
    )
