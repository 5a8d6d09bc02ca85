"""HSDP: replicas of a sharded model, two ranks a node, which exchange compressed gradients of their shards.

Replicas are named in three ways: ``given`` to the agent, ``native`` in the model's mesh, or each rank is one, by
``replicate()``.
"""

import functools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gravac_agent import Agent, SetupError
from tests.ranks.scenarios.sharded import AGENT, Uneven, loss_of, same, shards, trained

SHARDS = 2


@functools.cache
def mesh_of(world: int) -> DeviceMesh:
    return init_device_mesh("cpu", (world // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))


def sharded_by(
    mesh: DeviceMesh, model: nn.Module | None = None, by: Any = fully_shard, **options: Any
) -> Any:
    model = Uneven() if model is None else model
    for part in model.modules():
        if isinstance(part, nn.Linear):
            by(part, mesh=mesh, **options)
    return by(model, mesh=mesh, **options)


class Replicas:
    """How a model has replicas.

    Args:
        world: Number of ranks.
        how: ``given``, ``native`` or ``replicate``.

    Attributes:
        shards: Ranks of a replica.
        group: The ranks that hold the same shard.
        shard_group: The ranks of a replica; None if it is one.
        options: What the agent is given of it.
    """

    def __init__(self, world: int, how: str = "given") -> None:
        self.shards = 1 if how == "replicate" else SHARDS
        self._mesh = init_device_mesh("cpu", (world,)) if how == "replicate" else mesh_of(world)
        self._how = how
        outer = self._mesh if how == "replicate" else self._mesh["replicate"]
        self.group = outer.get_group()
        self.shard_group = None if how == "replicate" else self._mesh["shard"].get_group()
        self.options: dict[str, Any] = {"replicate": outer} if how == "given" else {}

    def model(self, native: bool = True, **options: Any) -> Any:
        """Make a model for the agent, or one whose replicas PyTorch averages (``native``)."""
        mesh = self._mesh["shard"] if self._how == "given" and not native else self._mesh
        return sharded_by(mesh, by=replicate if self._how == "replicate" else fully_shard, **options)


def hybrid_is_native(
    rank: int, world: int, folder: str, style: str, enabled: bool = True, how: str = "given"
) -> dict[str, Any]:
    """Dense gradients: PyTorch's own HSDP against the agent at CF 1, or not enabled; bit for bit."""
    replicas, results, windows = Replicas(world, how), [], -1
    options: dict[str, Any] = {}
    if style == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if style == "kept whole":
        options["reshard_after_forward"] = False
    for native in (True, False):
        model = replicas.model(native, **options)
        if style == "separate group":
            model.set_separate_reduce_scatter_group()
        for one in model.modules() if style.endswith("factor") else ():
            if isinstance(one, FSDPModule):
                one.set_gradient_divide_factor(2.0 if style == "factor" else 3.0)
                one.set_force_sum_reduction_for_comms(style == "summed factor")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if native:
            _train(model, optimizer, rank, style)
        else:
            settings = {"enabled": enabled, "policy": "dense", "data_dir": folder, "window": 2, **AGENT}
            with Agent(model, optimizer, **replicas.options, **settings) as agent:
                _train(model, optimizer, rank, style)
                windows = agent.state.window if agent.state else -1
        results.append(shards(model))
    start = shards(replicas.model(False))
    return {"same": same(*results), "moved": not same(results[0], start), "windows": windows}


def _train(model: FSDPModule, optimizer: Any, rank: int, style: str) -> None:
    if style == "accumulation":
        trained(model, optimizer, rank, range(4), micro=2)
        return
    late = style == "late all-reduce"
    for step in range(8):
        if late:
            model.set_requires_all_reduce(step % 2 == 1)
        loss_of(model, rank, step).backward()
        if step % 2 == 1 or not late:
            optimizer.step()
            optimizer.zero_grad()


def replicas_conserve(
    rank: int,
    world: int,
    folder: str,
    compressor: str,
    factor: float = 0.0,
    memory: str = "residual",
    how: str = "given",
) -> dict[str, Any]:
    """Parameters stay where they are, so dense gradients are known: what arrived and what waits add up to them."""
    dense, replicas = Uneven(), Replicas(world, how)
    model = replicas.model(False)
    for one in model.modules() if factor else ():
        if isinstance(one, FSDPModule):
            one.set_gradient_divide_factor(factor)
            one.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived: dict[str, Tensor] = {}
    options = {"policy": "static:cf=8", "compressor": compressor, "memory": memory, **AGENT}
    with Agent(
        model, optimizer, data_dir=folder, window=5, job="conserved", **replicas.options, **options
    ) as agent:
        for step in range(8):
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
    total_elements = sum(param.numel() for param in dense.parameters() if param.requires_grad)
    scale, worst, largest, waiting = (world / factor if factor else 1.0), 0.0, 0.0, 0.0
    nodes = world // replicas.shards
    for name, parameter in dense.named_parameters():
        if parameter.grad is None:
            continue
        total = parameter.grad.clone()
        dist.all_reduce(total)
        total *= scale / world
        length = -(-total.shape[0] // replicas.shards)
        own = total[(rank % replicas.shards) * length :][:length]
        rest = residual.get(name, torch.zeros(length * total[0].numel())).clone()
        dist.all_reduce(rest, group=replicas.group)
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
        "dense_bytes": state.dense_bytes / 8 / 4 / total_elements,
        "held": held / total_elements,
    }


def hybrid_resumed(
    rank: int, world: int, folder: str, compressor: str, memory: str, how: str = "given", levels: Any = "auto"
) -> dict[str, Any]:
    """14 clipped steps in one go against 7, a checkpoint on disk, and 7 more in new objects."""
    replicas = Replicas(world, how)
    options = {"policy": "static:cf=8", "compressor": compressor, "memory": memory, **AGENT}
    options |= {"data_dir": folder, "window": 5, "levels": levels, **replicas.options}

    def make() -> tuple[FSDPModule, torch.optim.Optimizer]:
        model = replicas.model(False)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def steps(agent: Agent, model: Any, optimizer: torch.optim.Optimizer, some: range) -> list[float]:
        norms = []
        for step in some:
            loss_of(model, rank, step).backward()
            norms.append(float(agent.clip_grad_norm_(0.2)))
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = 0.05 * 0.9**step
        return norms

    model, optimizer = make()
    with Agent(model, optimizer, job="whole", **options) as agent:
        norms = steps(agent, model, optimizer, range(14))
    whole = shards(model)
    model, optimizer = make()
    with Agent(model, optimizer, job="first", **options) as agent:
        steps(agent, model, optimizer, range(7))
        saved = {"model": shards(model), "optimizer": optimizer.state_dict()}
        torch.save(agent.state_dict(), f"{folder}/agent{rank}.pt")
        held = agent.state.memory_bytes if agent.state else 0
    model, optimizer = make()
    with Agent(model, optimizer, job="second", **options) as agent:
        agent.load_state_dict(torch.load(f"{folder}/agent{rank}.pt", weights_only=True))
        with torch.no_grad():
            for name, one in model.named_parameters():
                local: Any = one
                local.to_local().copy_(saved["model"][name])
        optimizer.load_state_dict(saved["optimizer"])
        steps(agent, model, optimizer, range(7, 14))
    with_agent = shards(model)
    # Closed, dense gradients are exchanged: the replicas stay equal.
    trained(model, optimizer, rank, range(14, 16))
    ours = torch.cat([shard.flatten() for shard in shards(model).values()])
    theirs = ours.clone()
    dist.broadcast(theirs, src=rank % replicas.shards, group=replicas.group)
    return {
        "same": same(whole, with_agent),
        "moved_on": not same(with_agent, shards(model)),
        "replicas_equal": torch.equal(ours, theirs),
        "norms": norms,
        "held": held,
    }


def hybrid_clipped(rank: int, world: int, folder: str, how: str) -> dict[str, Any]:
    """Dense steps, clipped by torch, by the agent at CF 1, and by torch while the agent runs: to rounding."""
    replicas, found = Replicas(world, how), []
    for number, by in enumerate(("torch alone", "agent", "torch")):
        model = replicas.model(by == "torch alone")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        options = {"policy": "dense", "enabled": by != "torch alone", **AGENT, **replicas.options}
        options = {"enabled": False} if by == "torch alone" else options
        norms = []
        with Agent(model, optimizer, data_dir=folder, window=5, job=f"clipped{number}", **options) as agent:
            for step in range(8):
                loss_of(model, rank, step).backward()
                clip = agent.clip_grad_norm_ if by == "agent" else _torch_clips(model)
                norms.append(float(clip(0.3)))
                optimizer.step()
                optimizer.zero_grad()
        found.append((norms, torch.cat([shard.flatten() for shard in shards(model).values()])))
    alone = found[0]
    return {
        "norms": [norms for norms, _ in found],
        "differ": max(float((flat - alone[1]).abs().max()) for _, flat in found[1:]),
    }


def _torch_clips(model: Any) -> Any:
    def clip(most: float) -> Tensor:
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), most)
        return norm.full_tensor()  # type: ignore[no-any-return]

    return clip


def clipped_alike(rank: int, world: int, folder: str, replicas: bool) -> dict[str, Any]:
    """A divide factor that is the number of ranks changes nothing: neither norms nor what clipping leaves."""
    mesh, found = mesh_of(world), []
    for divided in (False, True):
        model = sharded_by(mesh["shard"]) if replicas else sharded_by(init_device_mesh("cpu", (world,)))
        for one in model.modules() if divided else ():
            if isinstance(one, FSDPModule):
                one.set_gradient_divide_factor(float(world))
                one.set_force_sum_reduction_for_comms(True)
        start = torch.cat([shard.flatten() for shard in shards(model).values()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"policy": "static:cf=8", "compressor": "topk", "job": f"clipped{divided}", **AGENT}
        options |= {"replicate": mesh["replicate"]} if replicas else {}
        with Agent(model, optimizer, data_dir=folder, window=5, **options) as agent:
            cut = 0
            for step in range(8):
                loss_of(model, rank, step).backward()
                agent.clip_grad_norm_(0.05)
                norm: Any = nn.utils.get_total_norm(
                    [param.grad for param in model.parameters() if param.grad is not None]
                )
                cut += float(norm.full_tensor()) > 0.0501
                optimizer.step()
                optimizer.zero_grad()
        found.append(torch.cat([shard.flatten() for shard in shards(model).values()]))
    return {
        "differ": float((found[0] - found[1]).norm()),
        "moved": float((found[0] - start).norm()),
        "cut_less": cut,
    }


def hybrid_refused(rank: int, world: int, folder: str) -> dict[str, str]:
    """What each wrong use says; the last case is right."""
    mesh = mesh_of(world)

    def said(model: nn.Module, replicate: Any, **options: Any) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with Agent(model, optimizer, data_dir=folder, replicate=replicate, **{**AGENT, **options}):
                return ""
        except SetupError as error:
            return str(error)

    hooked = sharded_by(mesh["shard"])
    for module in hooked.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(lambda gradient: None)
    also_hooked = sharded_by(mesh)
    also_hooked.set_all_reduce_hook(lambda gradient: None)
    waiting = sharded_by(mesh)
    waiting.set_requires_all_reduce(False)
    loss_of(waiting, rank, 0).backward()
    flipped = init_device_mesh("cpu", (world,))
    mixed = Uneven()
    replicate(mixed.first, mesh=flipped)
    parts = Uneven()
    replicate(parts.first, mesh=flipped)
    return {
        "native": said(sharded_by(mesh), None),
        "native with replicate": said(sharded_by(mesh), mesh["replicate"]),
        "native with a hook": said(also_hooked, None),
        "native in the middle": said(waiting, None),
        "two kinds": said(fully_shard(mixed, mesh=mesh), None),
        "replicate() on parts": said(parts, None),
        "replicate() with replicate": said(sharded_by(flipped, by=replicate), flipped),
        "replicate() alone": said(
            replicate(Uneven(), mesh=init_device_mesh("cpu", (world, 1), mesh_dim_names=("a", "b"))["b"]),
            None,
        ),
        "half": said(
            sharded_by(flipped, by=replicate, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16)), None
        ),
        "the shards": said(sharded_by(mesh["shard"]), mesh["shard"]),
        "two dimensions": said(sharded_by(mesh["shard"]), mesh),
        "a number": said(sharded_by(mesh["shard"]), 2),
        "a hook": said(hooked, mesh["replicate"]),
        "a hook alone": said(hooked, None),
        "ddp": said(nn.parallel.DistributedDataParallel(Uneven()), mesh["replicate"]),
        "fine": said(sharded_by(mesh["shard"]), mesh["replicate"].get_group()),
    }


def hybrid_losses(rank: int, world: int, folder: str, steps: int, methods: list[str]) -> dict[str, Any]:
    """Held-out loss of handwritten digits after equal steps by each method: ``native``, or a codec and its CF."""
    from gravac_lab.tasks import evaluate  # only here: see tests/support/lab.py
    from gravac_lab.tasks.data import image_sets

    data, mesh, found = image_sets.digits(), mesh_of(world), {}
    for number, method in enumerate(methods):
        torch.manual_seed(0)
        layers = (nn.Linear(64, 250), nn.ReLU(), nn.Linear(250, 250), nn.ReLU(), nn.Linear(250, 10))
        native = method == "native"
        model = sharded_by(mesh if native else mesh["shard"], nn.Sequential(nn.Flatten(), *layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        compressor, _, cf = method.partition(" ")
        options: dict[str, Any] = {"compressor": compressor, "policy": f"static:cf={cf},epsilon=0.001"}
        options |= {"replicate": mesh["replicate"]}
        if native:
            options = {"enabled": False}
        batches, sent, before = data.batches(rank, world, 0, 32), bytes_sent(), 0
        with Agent(
            model, optimizer, data_dir=folder, window=20, job=f"losses{number}", **options, **AGENT
        ) as agent:
            for step in range(steps):
                if step == steps // 2:
                    agent.state_dict() if not native else None  # ends the step before
                    dist.barrier()
                    sent = bytes_sent()  # of the second half, without warm-up and set-up
                    before = agent.state.payload_bytes if agent.state else 0
                optimizer.param_groups[0]["lr"] = 0.1 * (1.0 - step / steps)
                inputs, classes = next(batches)
                nn.functional.cross_entropy(model(inputs), classes).backward()
                optimizer.step()
                optimizer.zero_grad()
            agent.state_dict() if not native else None
            dist.barrier()
            sent = bytes_sent() - sent
            state = agent.state
        found[method] = {
            "loss": evaluate(model, data.heldout()).loss,
            "wire": state.dense_bytes / state.payload_bytes if state else 1.0,
            "sent_bytes": sent,
            "payload_bytes": SHARDS * (state.payload_bytes - before) if state else 0,
        }
    return found


def bytes_sent() -> int:
    """Bytes that this host has sent to others, by the counters of its interfaces."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if line.split(":")[0].strip() != "lo")
