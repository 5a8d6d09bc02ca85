"""The second and third stage of a start: connect to what decides, and build the parts that run."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from gravac.collectives import ProcessGroupCommunicator
from gravac.collectives.cost import RING_RANKS
from gravac.kernels.backend import gpu_kernels
from gravac.memories import Memory
from gravac.predict import Recording
from gravac.protocol import JobSpec
from gravac_agent import sinks
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import text_of_first
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.executor import Executor
from gravac_agent.exchange.host_executor import HostExecutor
from gravac_agent.exchange.host_level import HostLevel
from gravac_agent.exchange.plan import next_plan
from gravac_agent.exchange.sample import GradientSample
from gravac_agent.exchange.tick import Announcement, TickCodec
from gravac_agent.fsdp.attach import GradientHook
from gravac_agent.network import link as links
from gravac_agent.network.doubling import Doubling
from gravac_agent.network.metered import Metered
from gravac_agent.network.probe import AggregatorBuilder
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.reporting.job_lock import JobLock
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.reporting.reporter import LocalReporter, Reporter
from gravac_agent.settings import AgentSettings
from gravac_agent.setup.agree import Agreement, Asked
from gravac_agent.setup.describe import innermost
from gravac_agent.streams.executor import StreamExecutor
from gravac_agent.windows.notes import Notes
from gravac_agent.windows.progress import Progress
from gravac_agent.windows.report import WindowReports
from gravac_agent.windows.step_loop import PlanSchedule, StepLoop


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a running agent on one rank. ``reporter`` is None on all ranks but 0."""

    spec: JobSpec
    rank: int
    world_size: int
    channels: Channels
    loop: StepLoop
    executor: Executor
    reporter: Reporter | None
    tick_group: dist.ProcessGroup
    metered: ProcessGroupCommunicator
    builder: AggregatorBuilder
    host: HostLevel | None
    """Divides buckets among the ranks of this host; None: nobody does."""

    @property
    def memory(self) -> Memory:
        return self.channels.memory


def connect(spec: JobSpec, asked: Asked) -> Reporter:
    """Begin the job's journal, here or at a controller, under a name that no other training has.

    Args:
        spec: The job.
        asked: What the user asked for.

    Raises:
        SetupError: Another run has the job's journal, or there is no folder for it; or the client of a sink is missing.
    """
    settings = asked.settings
    found = (*sinks.parse(settings.sink), *asked.sinks)
    for sink in found:
        sink.load()
    try:
        folder = settings.data_dir.absolute()  # which a later chdir does not move
    except FileNotFoundError:
        raise SetupError(
            f"data_dir={str(settings.data_dir)!r} is relative, and the working folder is gone: give an absolute path, "
            "or start in a folder that exists"
        ) from None
    name, lock, process = spec.job, None, None
    # The journal is written here; else the controller names the job.
    if settings.controller in ("auto", "none"):
        spec, lock = JobLock.named(folder, spec)
    if settings.controller == "none":
        return LocalReporter(spec, folder, asked.policy, lock, name, found)
    if settings.controller == "auto":
        process = ControllerProcess(folder, spec.job, settings.page_port, settings.steering == "owner")
    return HttpReporter(spec, settings, process, lock, name, found)


def start(
    agreed: Agreement,
    reporter: Reporter | None,
    optimizer: torch.optim.Optimizer,
    settings: AgentSettings,
    gradient_hook: GradientHook,
) -> Parts:
    """Build the parts that run a step, and start this rank's threads.

    Args:
        agreed: What the ranks agreed on.
        reporter: Rank 0's; None on the other ranks.
        optimizer: Steps the module's parameters.
        settings: The agent's settings.
        gradient_hook: The module's hook.
    """
    spec, channels, group = agreed.spec, agreed.channels, agreed.tick_group
    job = text_of_first("" if reporter is None else reporter.job, group)
    first = next_plan(agreed.start, agreed.tracker, channels.learning_codecs())
    announcement = Announcement(f"{agreed.text}|{agreed.builder}", first, reporter)
    executor = _executor(agreed, settings, gradient_hook, announcement)
    recording = None if reporter is None or not spec.torch_adam else Recording(spec)
    notes = Notes(reporter, group)
    loop = StepLoop(
        executor=executor,
        channels=channels,
        group=group,
        schedule=PlanSchedule(announcement, agreed.tracker, channels, notes, group),
        progress=Progress(innermost(optimizer), agreed.followed, agreed.coordinates, channels.note),
        reports=WindowReports(group, channels, reporter, job, spec.incarnation, recording),
        notes=notes,
        window_steps=settings.window,
    )
    if agreed.links:
        notes.inform(agreed.links)
    loop.begin_step()
    return Parts(
        spec,
        group.rank(),
        group.size(),
        channels,
        loop,
        executor,
        reporter,
        group,
        agreed.metered,
        agreed.builder,
        agreed.host,
    )


def _executor(
    agreed: Agreement, settings: AgentSettings, gradient_hook: GradientHook, announcement: Announcement
) -> Executor:
    channels, group = agreed.channels, agreed.tick_group
    dense = gradient_hook.dense_on(agreed.metered.group)
    tick_codec = TickCodec(group.rank(), group.size(), agreed.coordinates.size)
    if isinstance(agreed.metered, Metered):
        return HostExecutor(
            channels=channels,
            dense=dense,
            metered=agreed.metered,
            pacer=links.Pacer(agreed.builder.link),
            # Without doubling, a step makes no call through it (tests/ranks/test_calls.py).
            ticks=Doubling(group) if group.size() > RING_RANKS else ProcessGroupCommunicator(group),
            tick_codec=tick_codec,
            announcement=announcement,
            sample=GradientSample(agreed.coordinates),
            host=agreed.host,
        )
    assert agreed.device is not None
    for codec, aggregator in zip(channels.codecs, channels.aggregators, strict=True):
        if not aggregator.sync_free:
            channels.note(
                f"compressor={codec!r} reads the GPU in each bucket, and the host waits for it there."
            )
    channels.note(
        "The progress next to dense training is not measured on a GPU: the host would have to wait for it."
    )
    return StreamExecutor(
        device=agreed.device,
        channels=channels,
        dense=dense,
        ticks=agreed.ticks,
        link=agreed.builder.link,
        tick_codec=tick_codec,
        announcement=announcement,
        compiled=gpu_kernels(agreed.device.device),
        host=agreed.host,
    )
