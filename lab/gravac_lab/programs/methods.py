"""Methods to average gradients, ours and PyTorch's, each named by a word."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gravac import aggregators, memories, policies
from gravac_agent import Agent
from gravac_lab.programs import rivals, sharded
from gravac_lab.tasks import Task
from gravac_lab.tasks.optimizers import MuonAdamW

FORMS = (
    "none, alone, dense, fp16, powersgd:RANK, diloco:STEPS, agent[:LEVELS]/COMPRESSOR/MEMORY/POLICY, or "
    f"{sharded.FORM}"
)


class MethodError(ValueError):
    """The method does not exist or cannot run here."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A task under a method.

    Attributes:
        module: The module to call in training.
        optimizer: The optimizer to step.
        payload_bytes: Function from a number of steps to the bytes that this rank handed to collectives for the
            gradients of its first steps; to be called right after the last of them.
        clip_norm: Largest norm of the averaged gradient.
        clip: Clips the gradients to such a norm; None: torch does.
    """

    module: nn.Module
    optimizer: Optimizer
    payload_bytes: Callable[[int], int]
    clip_norm: float
    clip: Callable[[float], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """Settings of an agent; None is the agent's default."""

    compressor: str | None
    memory: str | None
    policy: str | None
    levels: str | None = None


def agent_spec(method: str) -> AgentSpec:
    """Parse ``agent/COMPRESSOR/MEMORY/POLICY``, such as ``agent/topk/residual/static:cf=100``.

    ``agent:flat`` has the setting ``levels``. Parts may be empty, or left out from the end. Only the policy may contain
    slashes.

    Raises:
        MethodError: For a part that is not valid, and names it.
    """
    first, *parts = method.split("/", 3)
    given: list[str | None] = [part or None for part in parts]
    compressor, memory, policy = given + [None] * (3 - len(given))
    try:
        if compressor:
            aggregators.parse(compressor)
        if memory:
            memories.build(memory)
        if policy:
            policies.parse(policy)
    except ValueError as error:
        raise MethodError(f"method {method!r}: {error}") from None
    levels = first.partition(":")[2] if first.startswith("agent") else ""
    return AgentSpec(compressor, memory, policy, levels or None)


@contextmanager
def apply(
    method: str, task: Task, link: str, scratch: Path, window: int, bucket_mb: float | None = None
) -> Iterator[Applied]:
    """Prepare ``task`` for training by a method.

    Args:
        method: One of ``FORMS``.
        task: The task on this rank.
        link: Rate that an agent emulates, such as ``100mbit``; it does not slow the other methods. ``none`` on a
            network that is slow itself.
        scratch: Folder for an agent's journal.
        window: Steps between an agent's decisions.
        bucket_mb: Size of DDP's buckets, in MB; None: DDP's default. PowerSGD's hook has one bucket.

    Raises:
        MethodError: When the method does not exist or cannot run here.
    """
    buckets: dict[str, Any] = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
    elements = sum(parameter.numel() for parameter in task.model.parameters())
    name, _, setting = method.partition(":")
    if name.split("/")[0] == "agent":
        with _agent(agent_spec(method), task, link, scratch, window, buckets) as applied:
            yield applied
    elif name.split("/")[0] == "fsdp":
        with _fsdp(method, task, link, scratch, window, elements) as applied:
            yield applied
    elif method == "none":  # DDP without its communication
        module = DistributedDataParallel(task.model, **buckets)
        module.register_comm_hook(None, _no_communication)
        yield _applied(module, task, lambda steps: 0)
    elif method == "alone":
        yield _applied(task.model, task, lambda steps: 0)
    elif link != "none" and name in ("fp16", "powersgd", "diloco"):
        raise MethodError(
            f"{method}: an emulated link slows only the agent; a really slow one needs root, ip and tc"
        )
    elif method == "dense":
        module = DistributedDataParallel(task.model, **buckets)
        yield _applied(module, task, lambda steps: 4 * elements * steps)
    elif method == "fp16":
        module = DistributedDataParallel(task.model, **buckets)
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
        yield _applied(module, task, lambda steps: 2 * elements * steps)
    elif name == "powersgd" and setting.isdecimal() and int(setting) > 0:
        try:
            module, payload_bytes = rivals.powersgd(int(setting), task.model, elements)
        except ImportError:
            raise MethodError("PyTorch's PowerSGD needs numpy: pip install numpy") from None
        yield _applied(module, task, payload_bytes)
    elif name == "diloco" and setting.isdecimal() and int(setting) > 0:
        optimizer = task.recipe.optimizer(task.model.parameters())
        sent = rivals.DiLoCo(task.model, optimizer, int(setting)).sent
        yield Applied(task.model, optimizer, sent, _clip_norm(task))
    else:
        raise MethodError(f"method {method!r} is not one of {FORMS}")


@contextmanager
def _agent(
    spec: AgentSpec, task: Task, link: str, scratch: Path, window: int, buckets: dict[str, Any]
) -> Iterator[Applied]:
    module = DistributedDataParallel(task.model, **buckets)
    optimizer, clip_norm = task.recipe.optimizer(module.parameters()), _clip_norm(task)
    if spec.memory and memories.build(spec.memory).transforms:
        # The memory applies the momentum and sends the sum of many gradients, so it also does the clipping.
        clip_norm = math.inf
        for group in optimizer.param_groups:
            group["momentum"] = 0.0
    with Agent(
        module,
        optimizer.parts if isinstance(optimizer, MuonAdamW) else optimizer,
        compressor=spec.compressor,
        memory=spec.memory,
        policy=spec.policy,
        levels=spec.levels,
        link=link,
        window=window,
        controller=None,
        data_dir=scratch,
        job="bench",
    ) as agent:

        def payload_bytes(steps: int) -> int:
            assert agent.state is not None
            return agent.state.payload_bytes

        yield Applied(module, optimizer, payload_bytes, clip_norm, agent.clip_grad_norm_)


@contextmanager
def _fsdp(method: str, task: Task, link: str, scratch: Path, window: int, elements: int) -> Iterator[Applied]:
    try:
        how = sharded.Sharding.parse(method)
        if "/" not in method:
            if link != "none":
                raise MethodError(f"{method}: an emulated link slows only the agent")
            sent = 0 if how.unreduced else 4 * elements
            yield _applied(sharded.shard(task.model, how), task, lambda steps: sent * steps)
            return
        spec = agent_spec(method)
        settings = {
            "compressor": spec.compressor,
            "memory": spec.memory,
            "policy": spec.policy,
            "link": link,
            "window": window,
        }
        with sharded.sharded_agent(task, how, settings, scratch) as (module, optimizer, agent):

            def payload_bytes(steps: int) -> int:
                assert agent.state is not None
                return agent.state.payload_bytes

            yield Applied(module, optimizer, payload_bytes, _clip_norm(task), agent.clip_grad_norm_)
    except ValueError as error:
        raise MethodError(f"method {method!r}: {error}") from None


def _no_communication(
    state: None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _applied(module: nn.Module, task: Task, payload_bytes: Callable[[int], int]) -> Applied:
    return Applied(module, task.recipe.optimizer(module.parameters()), payload_bytes, _clip_norm(task))


def _clip_norm(task: Task) -> float:
    return math.inf if task.recipe.clip_norm is None else task.recipe.clip_norm
