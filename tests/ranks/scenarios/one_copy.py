"""The error memory of a DDP model on one buffer: the bytes of a step, and steps that must be undone."""

import gc
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from gravac_agent.exchange.channel import BucketChannel
from tests.ranks.scenarios.model import fingerprint

WIDTH, LAYERS, BUCKETS = 192, 20, 20


def _model() -> DistributedDataParallel:
    torch.manual_seed(0)
    stack: list[nn.Module] = []
    for _ in range(LAYERS):
        stack += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    megabytes = LAYERS * WIDTH * WIDTH * 4 / 2**20
    return DistributedDataParallel(nn.Sequential(*stack), bucket_cap_mb=megabytes / BUCKETS)


def _backward(module: nn.Module, rank: int, step: int) -> None:
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    module(x).square().mean().backward()


def _storages(tensors: Any) -> dict[int, int]:
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def held_by_memory(rank: int, world: int, folder: str, compressor: str, cf: float) -> dict[str, Any]:
    """Bytes of all tensors in the middle of a step that are not the trainer's, and those that the memory reports."""
    module = _model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    copy = 4 * sum(parameter.numel() for parameter in module.parameters())
    found: dict[str, list[float]] = {"middle": [], "between": [], "reported": []}
    buffers: dict[int, int] = {}
    resolve, encode = BucketChannel.resolve, BucketChannel.encode

    def watched(self: BucketChannel, *given: Any) -> None:
        if step >= 5 and len(found["middle"]) == step - 5:
            found["middle"].append(mine())
        resolve(self, *given)

    def noted(self: BucketChannel, plan: Any, gradient: torch.Tensor, *more: Any) -> Any:
        buffers.update(_storages([gradient]))
        return encode(self, plan, gradient, *more)

    def mine() -> float:
        theirs = {one.data_ptr() for one in (p.untyped_storage() for p in module.parameters())}
        theirs |= {p.grad.untyped_storage().data_ptr() for p in module.parameters() if p.grad is not None}
        everything = _storages(thing for thing in gc.get_objects() if type(thing) is torch.Tensor)
        return sum(n for at, n in everything.items() if at not in theirs | before | buffers.keys()) / copy

    BucketChannel.resolve, BucketChannel.encode = watched, noted  # type: ignore[method-assign]
    try:
        gc.collect()
        before = set(_storages(thing for thing in gc.get_objects() if type(thing) is torch.Tensor))
        with Agent(
            module,
            optimizer,
            compressor=compressor,
            policy=f"static:cf={cf}",
            data_dir=folder,
            controller=None,
        ) as agent:
            for step in range(9):
                _backward(module, rank, step)
                optimizer.step()
                optimizer.zero_grad()
                if step >= 5:
                    gc.collect()
                    found["between"].append(mine())
                    assert agent.state is not None
                    found["reported"].append(agent.state.memory_bytes / copy)
            assert agent._session is not None
            count = len(agent._session.layout)
    finally:
        BucketChannel.resolve, BucketChannel.encode = resolve, encode  # type: ignore[method-assign]
    return {"buckets": count, **{name: max(shares, default=0.0) for name, shares in found.items()}}


def undone(rank: int, world: int, folder: str, how: str, at: int = 6) -> dict[str, Any]:
    """A step whose gradient must not stay in the memory, after some that left a residual."""
    module = _model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with Agent(
        module, optimizer, compressor="topk+bf16", policy="static:cf=50", data_dir=folder, controller=None
    ) as agent:
        parts = agent._parts
        assert parts is not None
        for step in range(at):
            _backward(module, rank, step)
            optimizer.step()
            optimizer.zero_grad()
        before = parts.memory.state_dict()
        bytes_before = parts.memory.nbytes()
        if how == "exception":
            weight = list(module.parameters())[2]
            handle = weight.register_hook(lambda grad: torch.full((1,), 1 // 0))
            try:
                _backward(module, rank, at)
            except ZeroDivisionError:
                handle.remove()
            agent.state_dict()
            after = parts.memory.state_dict()
            agent.close(clean=False)
            return {"off": _off(before, after), "residuals": len(after)}
        _backward(module, rank, at)
        optimizer.zero_grad(set_to_none=how == "none")  # dropped
        _backward(module, rank, at + 1)
        optimizer.step()
        optimizer.zero_grad()
        exact = []
        for step in range(at + 2, at + 8, 2):
            _backward(module, rank, step)
            optimizer.step()
            kept = parts.memory.state_dict()
            optimizer.zero_grad()
            _backward(module, rank, step + 1)
            optimizer.zero_grad(set_to_none=how == "none")
            module(torch.zeros(8, WIDTH))  # here the agent finds that they were dropped
            after = parts.memory.state_dict()
            exact.append(kept.keys() == after.keys() and all(torch.equal(kept[k], after[k]) for k in kept))
        return {
            "parameters": fingerprint(module),
            "growth": parts.memory.nbytes() / bytes_before,
            "exact": exact,
        }


def _off(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    assert before.keys() == after.keys()
    return max(float((before[k] - after[k]).abs().max() / before[k].abs().max()) for k in before)
