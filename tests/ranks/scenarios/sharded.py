"""FSDP2: gradients are neither lost nor doubled, dense is plain FSDP2, and misuse is named."""

import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import SymmMemReduceScatter

from gravac_agent import Agent, SetupError
from gravac_agent.state.by_rank import unpack
from tests.ranks.scenarios.model import batch
from tests.support.streams.at_once import streams_for_agents

AGENT: dict[str, Any] = {"controller": None, "collective": "auto"}


class Uneven(nn.Module):
    """Sizes that no number of ranks divides, a frozen layer, and parameters of the root itself."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 97), nn.Linear(97, 51)
        self.fixed = nn.Linear(51, 51).requires_grad_(not frozen)
        self.last = nn.Linear(51, 10)
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fixed(torch.tanh(self.second(torch.tanh(self.first(x))))))
        return self.last(x) * self.scale.sum() / 7


def sharded(world: int, frozen: bool = True, **options: Any) -> nn.Module:
    model = Uneven(frozen)
    mesh = init_device_mesh("cpu", (world,))
    for part in (model.first, model.second, model.fixed, model.last):
        fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def shards(model: nn.Module, *, grad: bool = False) -> dict[str, Tensor]:
    """This rank's shard of each parameter, or of its gradient."""
    found: dict[str, Tensor] = {}
    for name, one in model.named_parameters():
        tensor: Any = one.grad if grad else one.detach()
        if tensor is not None:
            found[name] = tensor.to_local().clone()
    return found


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    x, y = batch(rank, step)
    return nn.functional.cross_entropy(model(x), y)


def trained(
    model: nn.Module, optimizer: Any, rank: int, steps: range, micro: int = 1, each: Any = None
) -> float:
    loss = torch.zeros(())
    for step in steps:
        for part in range(micro):
            if micro > 1:
                assert isinstance(model, FSDPModule)
                model.set_requires_gradient_sync(part == micro - 1)
            loss = loss_of(model, rank, step * micro + part)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if each is not None:
            each(loss)
    return float(loss.detach())


def same_as_fsdp(
    rank: int, world: int, folder: str, how: str, style: str = "plain", steps: int = 12
) -> dict[str, Any]:
    """Train plainly and with the agent at CF 1 or not enabled; parameters must be the same bits."""
    results, plain = [], {"enabled": False} if how == "disabled" else {"policy": "dense", **AGENT}
    windows = 0
    for with_agent in (False, True):
        options: dict[str, Any] = {}
        if style == "bf16":
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model = sharded(world, **options)
        assert isinstance(model, FSDPModule)
        for one in model.modules():
            if isinstance(one, FSDPModule) and "factor" in style:
                one.set_gradient_divide_factor(4.0)
                # Without it FSDP2 asks for PREMUL_SUM, which gloo refuses, and the agent does not.
                one.set_force_sum_reduction_for_comms(style == "own factor" or not with_agent)
            if isinstance(one, FSDPModule) and style == "memory of the group":
                one.set_allocate_memory_from_process_group_for_comm(True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        micro = 2 if style == "accumulation" else 1
        if with_agent:
            with Agent(model, optimizer, data_dir=folder, window=5, **plain) as agent:
                trained(model, optimizer, rank, range(steps), micro)
                windows = agent.state.window if agent.state else -1
        else:
            trained(model, optimizer, rank, range(steps), micro)
        results.append(shards(model))
    moved = any(not torch.equal(one, torch.zeros_like(one)) for one in results[0].values())
    return {"same": same(*results), "moved": moved, "windows": windows}


def rows_conserved(
    rank: int, world: int, folder: str, compressor: str, factor: float = 0.0, forced: bool = True
) -> dict[str, Any]:
    """Parameters stay where they are, so that dense gradients are known: what arrived and what waits add up to them."""
    dense, total = Uneven(), {}
    model = sharded(world)
    assert isinstance(model, FSDPModule)
    if factor:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(factor)
                module.set_force_sum_reduction_for_comms(forced)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived: dict[str, Tensor] = {}
    steps = 12
    options = {"policy": "static:cf=8", "compressor": compressor, **AGENT}
    with Agent(model, optimizer, data_dir=folder, window=5, job="conserved", **options) as agent:
        for step in range(steps):
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
        payload, dense_bytes, cf = state.payload_bytes, state.dense_bytes, state.cf
    worst = largest = waiting = 0.0
    scale = world / factor if factor else 1.0
    for name, parameter in dense.named_parameters():
        if parameter.grad is None:
            continue
        total = parameter.grad.clone()
        dist.all_reduce(total)
        total *= scale / world
        length = -(-total.shape[0] // world)
        own = total[rank * length : (rank + 1) * length]
        for owner in range(world):
            piece = residual.get(f"{name}@{owner}", torch.zeros(length * total[0].numel()))
            piece = piece.clone() * scale / world
            dist.all_reduce(piece)
            if owner == rank:
                rest = piece[: own.numel()].view_as(own)
        if own.numel():
            worst = max(worst, float((arrived[name] + rest - own).abs().max()))
            largest = max(largest, float(own.abs().max()))
            waiting = max(waiting, float(rest.abs().max()))
    return {
        "error": worst / largest if largest else 0.0,
        "waiting": waiting,
        "cf": cf,
        "wire": dense_bytes / payload,
    }


class Branches(nn.Module):
    """One module whose parameters get gradients in some steps only, and one that is used twice in a step.

    Heads 0 and 1 have equally many elements, and so have 2 and 3 with padding. Head 1 only ever gets zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.twice = nn.Linear(16, 16)
        self.heads = nn.ModuleList(nn.Linear(16, n, bias=False) for n in (6, 6, 3, 4))

    def forward(self, x: Tensor, used: tuple[int, ...]) -> Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(x[:, :16]))))
        outs = [self.heads[one](h) * (0.0 if one == 1 else 1.0 + one) for one in used]
        return sum(((out - 1.0) ** 2).mean() for out in outs)  # type: ignore[return-value]


LAST = 15
USED = ((0,), (2,), (1,), (0, 2), (3,), (1,), (3,), (0, 3), (1,), (2,))


def branches_conserved(
    rank: int,
    world: int,
    folder: str,
    compressor: str,
    shards_of: int = 0,
    late: bool = False,
    native: bool = False,
) -> dict[str, Any]:
    """Parameters stay, and so do dense gradients: what arrived, with what waits or comes after ``close``, is their sum.

    Args:
        shards_of: Ranks of a node, whose replicas exchange (HSDP). 0: all ranks hold a shard each. 1: ``replicate()``.
        late: Whether replicas exchange in every other step only.
        native: Whether the model's own mesh has the replicas, instead of the agent's setting.
    """
    dense, model, options = Branches(), Branches(), dict(AGENT)
    ranks, own, mesh, outer = world, rank, init_device_mesh("cpu", (world,)), dist.group.WORLD
    wrap: Any = fully_shard
    if shards_of == 1:
        wrap, ranks, own = replicate, 1, 0
    elif shards_of:
        both = init_device_mesh("cpu", (world // shards_of, shards_of), mesh_dim_names=("out", "in"))
        options |= {} if native else {"replicate": both["out"]}
        outer, mesh = both["out"].get_group(), both if native else both["in"]
        ranks, own = shards_of, rank % shards_of
    wrap(model.twice, mesh=mesh)
    wrap(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    arrived: dict[str, Tensor] = {}

    def steps(some: range) -> None:
        for step in some:
            x, used = batch(rank, step)[0], (0, 1, 2, 3) if step == LAST else USED[step % len(USED)]
            model.set_requires_all_reduce(step % 2 == 1 or not late)
            model(x, used).backward()
            for name, grad in shards(model, grad=True).items():
                arrived[name] = arrived.get(name, torch.zeros_like(grad)) + grad
            optimizer.step()
            optimizer.zero_grad()
            dense(x, used).backward()

    def off(residual: dict[str, Tensor]) -> float:
        """Largest difference by parameter, against the largest gradient."""
        found, largest = 0.0, 0.0
        for name, parameter in dense.named_parameters():
            assert parameter.grad is not None
            mean = parameter.grad.clone()
            dist.all_reduce(mean)
            length = -(-mean.shape[0] // ranks)
            mine = mean[own * length :][:length] / world
            for call in ("", "~1"):
                for owner in (own,) if shards_of else range(ranks):
                    there = residual.get(f"{name}{call}" if shards_of else f"{name}{call}@{owner}")
                    piece = torch.zeros(length * mean[0].numel()) if there is None else there.clone()
                    dist.all_reduce(piece, group=outer)
                    if owner == own:
                        rest = piece[: mine.numel()].view_as(mine) / (
                            world // shards_of if shards_of else world
                        )
                        mine = mine - rest
            if mine.numel():
                found = max(found, float((arrived[name] - mine).abs().max()))
                largest = max(largest, float(mean.abs().max()))
        every = torch.tensor([found, largest])
        dist.all_reduce(every, dist.ReduceOp.MAX)
        return float(every[0] / every[1])

    options |= {"policy": "static:cf=8,epsilon=0", "compressor": compressor, "window": 5}
    with Agent(model, optimizer, data_dir=folder, job="branches", **options) as agent:
        steps(range(len(USED)))
        assert agent._parts is not None
        residual = agent._parts.memory.state_dict()
        open_off, failed = off(residual), any(channel.dense for channel in agent._parts.channels)
    steps(range(len(USED), LAST + 1))
    groups: list[Any] = [one._get_fsdp_state()._fsdp_param_group for one in (model.twice, model)]
    back = [not hasattr(group._reduce_scatter_comm, "gradient_hook") for group in groups]
    back += [group._all_reduce_hook is None for group in groups if "replicate" not in options]
    return {
        "open": 0.0 if late else open_off,
        "closed": off({}),
        "zero": float(arrived["heads.1.weight"].abs().max()) if arrived["heads.1.weight"].numel() else 0.0,
        "waiting": sum(float(one.abs().sum()) for one in residual.values()),
        "names": sorted({name.partition("@")[0] for name in residual}),
        "failed": failed,
        "back": all(back),
    }


def pairs_of_members(
    rank: int, world: int, folder: str, codecs: list[str], memories: list[str]
) -> dict[str, Any]:
    """A few steps with each memory and each codec, in turn: which of them failed, and whether states can be saved."""
    model, found = sharded(world), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"policy": "static:cf=8,epsilon=0", "memory": memories[0], "compressor": codecs[0], **AGENT}
    with Agent(model, optimizer, data_dir=folder, window=5, **options) as agent:
        assert agent._parts is not None
        for memory in memories:
            for codec in codecs:
                agent.switch(compressor=codec, memory=memory)
                before = agent._parts.loop.totals.failed_steps
                trained(model, optimizer, rank, range(3))
                failed = agent._parts.loop.totals.failed_steps - before
                kept = sum(len(one["residual"]) for one in unpack(agent.state_dict()))
                if failed or bool(kept) == (memory == "none"):
                    found[f"{codec} with {memory}"] = [failed, kept]
    return found


def row_nonfinite(rank: int, world: int, folder: str, compressor: str, cf: float) -> dict[str, Any]:
    """The last rank has a NaN in one step: no rank steps, and no residual changes."""
    model = sharded(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    policy = "dense" if cf == 1.0 else f"static:cf={cf}"
    with Agent(
        model, optimizer, data_dir=folder, window=5, policy=policy, compressor=compressor, **AGENT
    ) as agent:
        trained(model, optimizer, rank, range(6))
        assert agent._parts is not None
        before, residual = shards(model), agent._parts.memory.state_dict()
        loss = loss_of(model, rank, 6) * (math.nan if rank == world - 1 else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept, after = same(before, shards(model)), agent._parts.memory.state_dict()
        trained(model, optimizer, rank, range(7, 12))
        finite = all(bool(torch.isfinite(shard).all()) for shard in shards(model).values())
        moved = not same(before, shards(model))
        counted = agent.state.nonfinite_steps if agent.state else -1
    return {
        "kept": kept,
        "residual_kept": same(residual, after),
        "residual_elements": sum(one.numel() for one in residual.values()),
        "finite": finite,
        "moved": moved,
        "counted": counted,
    }


def given_back(rank: int, world: int, folder: str) -> dict[str, Any]:
    """After ``close`` the next gradients bring the residual, and the modules have their own reduce-scatter again."""

    def comms() -> list[Any]:
        return [
            group._reduce_scatter_comm
            for module in model.modules()
            if isinstance(module, FSDPModule)
            for group in module._get_fsdp_state()._fsdp_param_groups
        ]

    model, dense = sharded(world), Uneven()
    own = comms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"policy": "static:cf=20", "compressor": "topk", **AGENT}
    with Agent(model, optimizer, data_dir=folder, window=5, **options):
        taken = all(comm is not other for comm, other in zip(comms(), own, strict=True))
        trained(model, optimizer, rank, range(4))
        loss_of(model, rank, 4).backward()
        arrived = shards(model, grad=True)
        optimizer.step()
        optimizer.zero_grad()
    for step in range(5):
        loss_of(model, rank, 5).backward()
        if step == 0:
            with_leftover = shards(model, grad=True)
        without = shards(model, grad=True)
        optimizer.zero_grad()
    back = [comm is other for comm, other in zip(comms(), own, strict=True)]
    for step in (0, 1, 2, 3, 4, 5):
        loss_of(dense, rank, step).backward()
    for parameter in dense.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
    weight = dense.get_parameter("second.weight").grad
    assert weight is not None
    length = -(-weight.shape[0] // world)
    plain = sum_of_plain(world, rank, length)
    with Agent(model, optimizer, data_dir=folder, window=5, job="again", **options) as agent:
        trained(model, optimizer, rank, range(3))
        again = agent.state.step if agent.state else -1
    return {
        "taken": taken,
        "back": all(back),
        "again": again,
        "leftover": float((with_leftover["second.weight"] - plain).abs().max()),
        "exact": float((without["second.weight"] - plain).abs().max()),
        "sparse": int((arrived["second.weight"] == 0).sum()),
    }


def sum_of_plain(world: int, rank: int, length: int) -> Tensor:
    """This rank's rows of the dense mean gradient of step 5, of one weight."""
    plain = Uneven()
    loss_of(plain, rank, 5).backward()
    grad = plain.second.weight.grad
    assert grad is not None
    dist.all_reduce(grad)
    return grad[rank * length : (rank + 1) * length] / world


def backward_fails(rank: int, world: int, folder: str, streams: bool = False) -> dict[str, Any]:
    """An exception in the middle of a backward, then a retry: as if the first had not been.

    ``streams``: with the streams of a device, which run at once.
    """
    with streams_for_agents() if streams else nullcontext():
        return _backward_fails(rank, world, folder)


def _backward_fails(rank: int, world: int, folder: str) -> dict[str, Any]:
    results = []
    for broken in (False, True):
        model = sharded(world, frozen=False)
        assert isinstance(model, FSDPModule)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        options = {"policy": "static:cf=10", "compressor": "topk", **AGENT}
        with Agent(model, optimizer, data_dir=folder, window=5, job=f"fails{broken}", **options) as agent:
            trained(model, optimizer, rank, range(4))
            if broken:
                x, y = batch(rank, 99)
                hidden = torch.tanh(model.second(torch.tanh(model.first(x))))
                hidden.register_hook(_fail)
                raised = False
                try:
                    loss_with(model, hidden, y).backward()
                except ZeroDivisionError:
                    raised = True
                assert raised
                model.reset_iter_state()
                optimizer.zero_grad()
            trained(model, optimizer, rank, range(4, 9))
            agent.state_dict()  # takes in the last step
            steps = agent.state.step if agent.state else -1
        results.append(shards(model))
    return {"same": same(*results), "steps": steps}


def loss_with(model: Any, hidden: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model.last(torch.tanh(model.fixed(hidden))), y)


def _fail(grad: Tensor) -> None:
    raise ZeroDivisionError("on purpose")


def sharding_refused(rank: int, world: int, folder: str) -> dict[str, str]:
    """What each wrong use says."""

    def said(make: Any, **options: Any) -> str:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with Agent(model, optimizer, data_dir=folder, **{**AGENT, **options}):
                return ""
        except SetupError as error:
            return str(error)

    def parts_only() -> nn.Module:
        model = Uneven()
        fully_shard(model.first, mesh=init_device_mesh("cpu", (world,)))
        return model

    def alone_outside() -> nn.Module:  # replicas of one rank: the reduce-scatter is compressed
        return fully_shard(Uneven(), mesh=init_device_mesh("cpu", (1, world), mesh_dim_names=("a", "b")))

    def alone() -> nn.Module:
        return fully_shard(Uneven(), mesh=init_device_mesh("cpu", (world, 1), mesh_dim_names=("a", "b"))["b"])

    def two_meshes() -> nn.Module:
        model = Uneven()
        fully_shard(model.first, mesh=init_device_mesh("cpu", (world,)))
        flipped = dist.new_group(list(range(world)))
        mesh = torch.distributed.device_mesh.DeviceMesh.from_group(flipped, "cpu")
        return fully_shard(model, mesh=mesh)

    def half() -> nn.Module:
        return sharded(world, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))

    def plain() -> nn.Module:
        return sharded(world)

    def symmetric() -> nn.Module:  # as set_symm_mem_for_comm makes it, which needs NCCL
        model: Any = sharded(world)
        model.set_custom_reduce_scatter(SymmMemReduceScatter.__new__(SymmMemReduceScatter))
        return model

    def offloaded() -> nn.Module:
        model: Any = sharded(world, offload_policy=CPUOffloadPolicy(pin_memory=False))
        for module in model.modules():
            for group in (
                module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else ()
            ):
                group.device = torch.device("cuda")
        return model

    running: Any = plain()
    with Agent(running, torch.optim.SGD(running.parameters(), lr=0.1), data_dir=folder, **AGENT):
        try:
            running.set_allocate_memory_from_process_group_for_comm(True)
            late = "nothing"
        except AssertionError as error:
            late = str(error)
    return {
        "symmetric": said(symmetric),
        "offloaded": said(offloaded),
        "late": late,
        "parts": said(parts_only),
        "alone outside": said(alone_outside),
        "alone": said(alone),
        "meshes": said(two_meshes),
        "float16": said(half),
        "powersgd": said(plain, compressor="powersgd"),
        "collective": said(plain, collective="gather"),
        "fine": said(plain),
    }


class Ratios:
    """Logs the loss of each step and keeps how many times fewer bytes than dense the step sent.

    The median says what a job sent; its last step does not, as a policy may be measuring dense steps then.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent, self.each = agent, list[float]()

    def __call__(self, loss: Tensor) -> None:
        self.agent.log(loss=loss)
        state = self.agent.state
        if state is not None and state.payload_bytes:
            self.each.append(state.dense_bytes / state.payload_bytes)
