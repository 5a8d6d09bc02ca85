"""HSDP: replicas of a sharded model, two ranks a node, which exchange compressed gradients of their shards."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gravac_agent import Agent, SetupError
from gravac_agent.tasks import evaluate, image_sets
from tests.support.ranks.scenarios.sharded import AGENT, Uneven, loss_of, same, shards, trained

SHARDS = 2


def mesh_of(world: int) -> DeviceMesh:
    return init_device_mesh("cpu", (world // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))


def sharded_by(mesh: DeviceMesh, model: nn.Module | None = None, **options: Any) -> FSDPModule:
    model = Uneven() if model is None else model
    for part in model.modules():
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def hybrid_is_native(rank: int, world: int, folder: str, style: str, enabled: bool = True) -> dict[str, Any]:
    """Dense gradients: PyTorch's own HSDP against the agent at CF 1, or not enabled; bit for bit."""
    mesh, results, windows = mesh_of(world), [], -1
    options: dict[str, Any] = {}
    if style == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for native in (True, False):
        model = sharded_by(mesh if native else mesh["shard"], **options)
        for one in model.modules() if style.endswith("factor") else ():
            if isinstance(one, FSDPModule):
                one.set_gradient_divide_factor(2.0 if style == "factor" else 3.0)
                one.set_force_sum_reduction_for_comms(style == "summed factor")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def train() -> None:
            if style == "accumulation":
                trained(model, optimizer, rank, range(6), micro=2)
                return
            for step in range(12):
                if style == "late all-reduce":
                    model.set_requires_all_reduce(step % 2 == 1)
                loss_of(model, rank, step).backward()
                if style != "late all-reduce" or step % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()

        if native:
            train()
        else:
            settings = {"enabled": enabled, "policy": "dense", "data_dir": folder, "window": 3, **AGENT}
            with Agent(model, optimizer, replicate=mesh["replicate"], **settings) as agent:
                train()
                windows = agent.state.window if agent.state else -1
        results.append(shards(model))
    start = shards(sharded_by(mesh["shard"]))
    return {"same": same(*results), "moved": not same(results[0], start), "windows": windows}


def replicas_conserve(
    rank: int, world: int, folder: str, compressor: str, factor: float = 0.0, memory: str = "residual"
) -> dict[str, Any]:
    """Parameters stay where they are, so dense gradients are known: what arrived and what waits add up to them."""
    dense, mesh = Uneven(), mesh_of(world)
    model = sharded_by(mesh["shard"])
    for one in model.modules() if factor else ():
        if isinstance(one, FSDPModule):
            one.set_gradient_divide_factor(factor)
            one.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived: dict[str, Tensor] = {}
    options = {"policy": "static:cf=8", "compressor": compressor, "memory": memory, **AGENT}
    with Agent(
        model, optimizer, data_dir=folder, window=5, job="conserved", replicate=mesh["replicate"], **options
    ) as agent:
        for step in range(10):
            loss_of(model, rank, step).backward()
            for name, grad in shards(model, grad=True).items():
                arrived[name] = arrived.get(name, torch.zeros_like(grad)) + grad
            optimizer.step()
            optimizer.zero_grad()
            loss_of(dense, rank, step).backward()
        assert agent._parts is not None
        residual = agent._parts.memory.state_dict()
        state = agent.state
        assert state is not None
    total_elements = sum(one.numel() for one in dense.parameters() if one.requires_grad)
    scale, worst, largest, waiting = (world / factor if factor else 1.0), 0.0, 0.0, 0.0
    nodes = world // SHARDS
    for name, parameter in dense.named_parameters():
        if parameter.grad is None:
            continue
        total = parameter.grad.clone()
        dist.all_reduce(total)
        total *= scale / world
        length = -(-total.shape[0] // SHARDS)
        own = total[(rank % SHARDS) * length :][:length]
        rest = residual.get(name, torch.zeros(length * total[0].numel())).clone()
        dist.all_reduce(rest, group=mesh["replicate"].get_group())
        # The residual is of what the hook got: the mean over a node, or its sum with the factor.
        rest *= 1.0 / factor if factor else 1.0 / nodes
        rest = rest[: own.numel()].view_as(own)
        if own.numel():
            worst = max(worst, float((arrived[name] + rest - own).abs().max()))
            largest = max(largest, float(own.abs().max()))
            waiting = max(waiting, float(rest.abs().max()))
    held = sum(one.numel() for one in residual.values())
    return {
        "error": worst / largest if largest else 0.0,
        "waiting": waiting,
        "cf": state.cf,
        "wire": state.dense_bytes / state.payload_bytes,
        "dense_bytes": state.dense_bytes / 10 / 4 / total_elements,
        "held": held / total_elements,
    }
