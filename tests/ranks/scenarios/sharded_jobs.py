"""FSDP2 in whole trainings: resumed, with windows and decisions, with other numbers of ranks, and their losses."""

from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

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


def sharded_resumed(rank: int, world: int, folder: str, compressor: str, memory: str) -> dict[str, Any]:
    """20 clipped steps in one go against 10, a checkpoint on disk, and 10 more in new objects."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = sharded(world)
        weights = [param for param in model.parameters() if param.dim() > 1]
        biases = [param for param in model.parameters() if param.dim() == 1]
        return model, torch.optim.SGD([{"params": weights}, {"params": biases}], lr=0.05, momentum=0.9)

    def steps(agent: Agent, model: nn.Module, optimizer: torch.optim.Optimizer, some: range) -> list[float]:
        norms = []
        for step in some:
            loss = loss_of(model, rank, step)
            loss.backward()
            norms.append(float(agent.clip_grad_norm_(0.1)))
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[1]["lr"] = 0.05 * 0.9**step  # of the biases only
            agent.log(loss=loss)
        return norms

    options = {"policy": "static:cf=20", "compressor": compressor, "memory": memory, **AGENT}
    options |= {"data_dir": folder, "window": 5}
    model, optimizer = make()
    with Agent(model, optimizer, job="whole", **options) as agent:
        norms = steps(agent, model, optimizer, range(20))
        assert agent._parts is not None
        rescaled = len(agent._parts.memory.state_dict())
    whole = shards(model)
    model, optimizer = make()
    with Agent(model, optimizer, job="first", **options) as agent:
        steps(agent, model, optimizer, range(10))
        # As DCP does: the local shards, and the optimizer by the order of its parameters.
        saved = {"agent": agent.state_dict(), "model": shards(model), "optimizer": optimizer.state_dict()}
        torch.save(saved["agent"], f"{folder}/agent{rank}.pt")
    model, optimizer = make()
    with Agent(model, optimizer, job="second", **options) as agent:
        agent.load_state_dict(torch.load(f"{folder}/agent{rank}.pt", weights_only=True))
        with torch.no_grad():
            for name, one in model.named_parameters():
                local: Any = one
                local.to_local().copy_(saved["model"][name])
        optimizer.load_state_dict(saved["optimizer"])
        steps(agent, model, optimizer, range(10, 20))
    return {"same": same(whole, shards(model)), "norms": norms, "residuals": rescaled}


def sharded_job(rank: int, world: int, folder: str, policy: str) -> dict[str, Any]:
    """A job with windows, decisions and a journal, which is replayed."""
    model = sharded(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    began = float(loss_of(model, 0, 10_000).detach())
    options = {"job": "sharded", "window": 6, "policy": policy, "link": "1mbit", **AGENT}
    with Agent(model, optimizer, data_dir=folder, **options) as agent:
        ratios, pieces = Ratios(agent), list[int]()

        def each(loss: Tensor) -> None:
            ratios(loss)
            pieces.append(len(agent._parts.memory.state_dict()) if agent._parts else -1)

        trained(model, optimizer, rank, range(100), each=each)
        state, trace = agent.state, agent.trace_path
        assert state is not None
    ended = float(loss_of(model, 0, 10_000).detach())
    return {
        "windows": state.window,
        "cf": state.cf,
        "epoch": state.epoch,
        "fewer": median(ratios.each),
        "pieces": pieces,  # of the residual, after each step
        "began": began,
        "ended": ended,
        "trace": None if trace is None else str(trace),
    }


def ranks_change(rank: int, world: int, folder: str, shared: str, saved_by: int, wrap: str) -> dict[str, Any]:
    """Two parts of one training with lr 0, the second with other ranks: gradients, arrived ones and residuals add up.

    ``saved_by``: 0 in the first part, which saves; else how many ranks have saved.
    """
    dense = Uneven()
    options = {"policy": "static:cf=10", "compressor": "topk", "job": f"part{saved_by}", **AGENT}
    model: Any
    replicas = Replicas(world, wrap) if wrap in ("given", "native", "replicate") else None
    if replicas is not None:
        model, options = replicas.model(False), options | replicas.options
    else:
        model = sharded(world) if wrap == "fsdp" else DistributedDataParallel(Uneven(), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived: dict[str, Tensor] = {}
    with Agent(model, optimizer, data_dir=folder, window=5, **options) as agent:
        before = {"arrived": arrived, "dense": arrived}
        if saved_by:
            before = torch.load(f"{shared}/sums.pt", weights_only=True)
            agent.load_state_dict(
                [torch.load(f"{shared}/{one}.pt", weights_only=True) for one in range(saved_by)]
            )
        for step in range(6):
            loss_of(model, rank, step).backward()
            for name, one in model.named_parameters():
                if one.grad is not None:
                    whole = one.grad if wrap == "ddp" else one.grad.full_tensor()
                    name = name.removeprefix("module.")
                    arrived[name] = arrived.get(name, torch.zeros_like(whole)) + whole
            optimizer.step()
            optimizer.zero_grad()
            loss_of(dense, rank, step).backward()
        torch.save(agent.state_dict(), f"{shared}/{rank}.pt") if not saved_by else None
        assert agent._parts is not None
        residual = agent._parts.memory.state_dict()
    worst = largest = waiting = 0.0
    sums: dict[str, Tensor] = {}
    for name, parameter in dense.named_parameters():
        if parameter.grad is None:
            continue
        sums[name] = parameter.grad.clone()
        pieces = [residual[piece] for piece in residual if piece.partition("@")[0] == name]
        if replicas is not None and replicas.shard_group is not None:
            pieces = [torch.empty_like(pieces[0]) for _ in range(replicas.shards)]
            dist.all_gather(pieces, residual[name], group=replicas.shard_group)
        rest = torch.cat(pieces)[: parameter.numel()].view_as(parameter).clone()
        for one in (sums[name], rest):
            dist.all_reduce(one)
            one /= world
        whole = sums[name] + before["dense"].get(name, torch.zeros(()))
        came = arrived[name] + before["arrived"].get(name, torch.zeros(()))
        worst = max(worst, float((came + rest - whole).abs().max()))
        largest, waiting = max(largest, float(whole.abs().max())), max(waiting, float(rest.abs().max()))
    if rank == 0 and not saved_by:
        torch.save({"arrived": arrived, "dense": sums}, f"{shared}/sums.pt")
    return {"error": worst / largest, "waiting": waiting / largest}


def sharded_losses(rank: int, world: int, folder: str, steps: int, methods: list[str]) -> dict[str, Any]:
    """Held-out loss of handwritten digits after equal steps by each method, and what the error memory holds."""
    from gravac_lab.tasks import evaluate  # only here: see tests/support/lab.py
    from gravac_lab.tasks.data import image_sets

    data, found = image_sets.digits(), {}
    mesh = init_device_mesh("cpu", (world,))
    for number, method in enumerate(methods):
        torch.manual_seed(0)
        layers = (nn.Linear(64, 250), nn.ReLU(), nn.Linear(250, 250), nn.ReLU(), nn.Linear(250, 10))
        model = nn.Sequential(nn.Flatten(), *layers)
        for part in layers[::2]:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        compressor, _, rest = method.partition("/")
        memory, _, policy = rest.partition("/")
        options: dict[str, Any] = {"compressor": compressor, "policy": policy, "memory": memory or None}
        if method == "plain":
            options = {"enabled": False}
        batches = data.batches(rank, world, 0, 32)
        with Agent(
            model, optimizer, data_dir=folder, window=20, job=f"losses{number}", **options, **AGENT
        ) as agent:
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = 0.05 * (1.0 - step / steps)
                inputs, classes = next(batches)
                nn.functional.cross_entropy(model(inputs), classes).backward()
                optimizer.step()
                optimizer.zero_grad()
            state = agent.state
        score = evaluate(model, data.heldout())
        found[method] = {
            "loss": score.loss,
            "memory_bytes": state.memory_bytes if state else 0,
            "wire": state.dense_bytes / state.payload_bytes if state else 1.0,
        }
    return found
