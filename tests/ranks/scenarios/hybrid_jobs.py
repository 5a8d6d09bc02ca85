"""HSDP in whole jobs: decisions, non-finite gradients, residuals after ``close``, and shards of one rank."""

import math
import warnings
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac import optim
from gravac_agent import Agent
from tests.ranks.scenarios.hybrid import Replicas
from tests.ranks.scenarios.sharded import (
    AGENT,
    Ratios,
    Uneven,
    loss_of,
    same,
    sharded,
    shards,
    trained,
)


def mesh_of(world: int, nodes: int) -> DeviceMesh:
    return init_device_mesh("cpu", (nodes, world // nodes), mesh_dim_names=("replicate", "shard"))


def on(mesh: DeviceMesh) -> Any:
    model = Uneven()
    for part in (model.first, model.second, model.fixed, model.last):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shards_of_one(rank: int, world: int, folder: str, enabled: bool) -> dict[str, Any]:
    """A node for each rank: PyTorch's own HSDP, and the agent at CF 1 or not enabled, must give the same bits."""
    mesh, results = mesh_of(world, world), []
    for ours in (False, True):
        model = on(mesh["shard"] if ours else mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if not ours:
            trained(model, optimizer, rank, range(8))
        else:
            options = {"policy": "dense", "enabled": enabled, **AGENT}
            with Agent(model, optimizer, replicate=mesh["replicate"], data_dir=folder, window=4, **options):
                trained(model, optimizer, rank, range(8))
        results.append(shards(model))
    return {"same": same(*results), "weights": sum(float(one.abs().sum()) for one in results[1].values())}


def residual_after_close(
    rank: int, world: int, folder: str, compressor: str, how: str = "given", late: bool = False
) -> dict[str, Any]:
    """Parameters stay where they are: what arrived and what waits on the nodes add up to the dense gradients.

    After the agent is closed, the next gradients bring what waits. Replicas of the model's own mesh are then PyTorch's
    again, ``late``: after a backward without an all-reduce, which the agent has seen.
    """
    replicas, dense = Replicas(world, how), Uneven()
    model = replicas.model(False)
    own = _of_torch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived: dict[str, Tensor] = {}

    def step(number: int) -> None:
        loss_of(model, rank, number).backward()
        for name, grad in shards(model, grad=True).items():
            arrived[name] = arrived.get(name, torch.zeros_like(grad)) + grad
        optimizer.step()
        optimizer.zero_grad()
        loss_of(dense, rank, number).backward()

    options = {"policy": "static:cf=8", "compressor": compressor, **AGENT, **replicas.options}
    with Agent(model, optimizer, data_dir=folder, window=5, **options) as agent:
        taken = all(one is not other for one, other in zip(_of_torch(model), own, strict=True))
        for number in range(9):
            step(number)
        model.set_requires_all_reduce(not late)
        step(9)
        assert agent._parts is not None
        assert agent.state is not None
        residual = {name: one.clone() for name, one in agent._parts.memory.state_dict().items()}
        cf = agent.state.cf
    before = 0.0 if late else _missing(dense, arrived, residual, replicas)
    waited = max(float(one.abs().max()) for one in residual.values())
    model.set_requires_all_reduce(True)
    step(10)
    return {
        "error": before,
        "after": _missing(dense, arrived, {}, replicas),
        "waited": waited,
        "cf": cf,
        "taken": taken,
        "back": all(one is other for one, other in zip(_of_torch(model), own, strict=True)),
    }


def _of_torch(model: nn.Module) -> list[Any]:
    """What FSDP2 has in each module where an agent may put its own."""
    return [
        one
        for part in model.modules()
        if isinstance(part, FSDPModule)
        for group in part._get_fsdp_state()._fsdp_param_groups
        for one in (group._all_reduce_hook, group.mesh_info, vars(group).get("post_backward"))
    ]


def _missing(
    dense: nn.Module, arrived: dict[str, Tensor], residual: dict[str, Tensor], replicas: Replicas
) -> float:
    worst = largest = 0.0
    own, of = dist.get_rank() % replicas.shards, replicas.shards
    for name, parameter in dense.named_parameters():
        if parameter.grad is None:
            continue
        total = parameter.grad.clone()
        dist.all_reduce(total)
        total /= dist.get_world_size()
        length = -(-total.shape[0] // of)
        mine = total[own * length : (own + 1) * length]
        rest = residual.get(name, torch.zeros(length * total[0].numel())).clone()
        dist.all_reduce(rest, group=replicas.group)
        rest = rest[: mine.numel()].view_as(mine) / replicas.group.size()
        worst = max(worst, float((arrived[name] + rest - mine).abs().max())) if mine.numel() else worst
        largest = max(largest, float(mine.abs().max())) if mine.numel() else largest
    return worst / largest


def replicas_with(rank: int, world: int, folder: str, how: str, what: str) -> dict[str, Any]:
    """A short job with something else besides the agent. It ends with equal replicas, and with an equal residual where
    ``torch.distributed.checkpoint`` saves and loads it."""
    replicas, options = Replicas(world, how), {"policy": "static:cf=8", "window": 4, **AGENT}
    options |= {"adapt_optimizer": what == "adapt_optimizer", "data_dir": folder, **replicas.options}
    wrapped = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if what == "offload" else {}

    def made() -> tuple[Any, Any]:
        model = replicas.model(False, **wrapped)
        model.set_reduce_scatter_unused_params(what == "unused")
        kind: Any = optim.AdamW if what == "gravac.optim" else torch.optim.AdamW
        return model, kind(model.parameters(), lr=1e-3)

    model, optimizer = made()
    called: Any = torch.compile(model, backend="eager") if what == "compiled" else model
    if what == "compiled":  # torch reads it itself while it compiles FSDP2's modules
        warnings.filterwarnings("ignore", "The .grad attribute")
    with Agent(called, optimizer, job="first", **options) as agent:
        trained(called, optimizer, rank, range(6))
        if what == "switch":
            agent.switch(compressor="int4", memory="residual-bf16")
        trained(called, optimizer, rank, range(6, 10))
        state = agent.state
        assert agent._parts is not None
        assert state is not None
        before = agent._parts.memory.state_dict()
        dcp.save({"agent": agent.state_dict()}, checkpoint_id=f"{folder}/saved") if what == "dcp" else None
    trained(called, optimizer, rank, range(10, 12))
    kept = True
    if what == "dcp":
        model, optimizer = made()
        with Agent(model, optimizer, job="second", **options) as agent:
            saved = {"agent": agent.state_dict()}
            dcp.load(saved, checkpoint_id=f"{folder}/saved", planner=gravac.LoadPlanner())
            agent.load_state_dict(saved["agent"])
            assert agent._parts is not None
            kept = same(before, agent._parts.memory.state_dict())
            trained(model, optimizer, rank, range(3))
    flat = torch.cat([shard.reshape(-1) for shard in shards(model).values()])
    first = flat.clone()
    dist.broadcast(first, src=rank % replicas.shards, group=replicas.group)
    return {
        "wire": state.dense_bytes / state.payload_bytes,
        "equal": torch.equal(flat, first),
        "kept": kept,
        "waits": sum(float(one.float().abs().sum()) for one in before.values()),
    }


def mean_of_kinds(rank: int, world: int, folder: str) -> dict[str, list[float]]:
    """What a window of dense steps reports of the mean gradient and of those that it is made of."""
    found = {}
    for kind in ("ddp", "fsdp", "replicate"):
        model: Any = sharded(world) if kind == "fsdp" else Replicas(world, "replicate").model()
        model = DistributedDataParallel(Uneven()) if kind == "ddp" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Agent(model, optimizer, policy="dense", data_dir=folder, job=kind, window=4, **AGENT) as agent:
            trained(model, optimizer, rank, range(5))
            assert agent._parts is not None
            report = agent._parts.loop.reports.last
        sums = None if report is None else report.levels[0].sums
        found[kind] = [] if sums is None else [sums.mean_sq, sums.mean_gradient_sq]
    return found


def hybrid_nonfinite(
    rank: int, world: int, folder: str, compressor: str, cf: float, how: str = "given"
) -> dict[str, Any]:
    """The last rank has a NaN in one step: no rank of any node steps."""
    replicas = Replicas(world, how)
    model = replicas.model(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"policy": "dense" if cf == 1.0 else f"static:cf={cf}", "compressor": compressor, **AGENT}
    with Agent(model, optimizer, **replicas.options, data_dir=folder, window=5, **options) as agent:
        trained(model, optimizer, rank, range(4))
        before = shards(model)
        (loss_of(model, rank, 4) * (math.nan if rank == world - 1 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = same(before, shards(model))
        trained(model, optimizer, rank, range(5, 8))
        finite = all(bool(torch.isfinite(shard).all()) for shard in shards(model).values())
        counted = agent.state.nonfinite_steps if agent.state else -1
        agent.switch(memory="residual-bf16")
        assert agent._parts is not None
        averaged = agent._parts.memory.world_size  # the ranks between which it works: nodes
    return {
        "kept": kept,
        "finite": finite,
        "moved": not same(before, shards(model)),
        "counted": counted,
        "averaged": averaged,
    }


def hybrid_job(rank: int, world: int, folder: str, policy: str, how: str = "given") -> dict[str, Any]:
    """A job with windows, decisions and a journal on an emulated link; nodes must not drift apart."""
    replicas = Replicas(world, how)
    model = replicas.model(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"job": "hybrid", "window": 6, "policy": policy, "link": "200kbit", **AGENT}
    with Agent(model, optimizer, **replicas.options, data_dir=folder, **options) as agent:
        ratios = Ratios(agent)
        trained(model, optimizer, rank, range(42), each=ratios)
        state, trace = agent.state, agent.trace_path
        assert state is not None
    flat = torch.cat([shard.reshape(-1) for shard in shards(model).values()])
    mine = [torch.empty_like(flat) for _ in range(replicas.group.size())]
    dist.all_gather(mine, flat, group=replicas.group)
    return {
        "windows": state.window,
        "cf": state.cf,
        "epoch": state.epoch,
        "fewer": median(ratios.each),
        "equal": all(torch.equal(one, flat) for one in mine),
        "trace": None if trace is None else str(trace),
    }
