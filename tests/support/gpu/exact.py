"""A model whose gradients are known to the bit on every device, and its training."""

import base64
import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac import Agent
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.overflow import Float16Means
from tests.support.scripted import Play, ScriptedPolicy

SIZES = (3000, 4097, 1200, 5000, 2048, 3333, 4100, 1500, 2999, 6000)
"""Elements of each parameter. With ``CAP_MB`` each is a bucket of its own."""
CAP_MB = 0.003
RATE = 2.0**-4
"""A power of two: the product with it is exact, so fused and separate rounding give the same parameters."""
DELAYED = (
    (BucketChannel, "encode"),
    (BucketChannel, "resolve"),
    (BucketChannel, "decode"),
    (Float16Means, "write_unread"),
)
CYCLES = 20_000_000
"""The longest delay on a GPU, about 10 ms."""


class Exact(nn.Module):
    """The sum of products of its parameters and the tensors passed in, which therefore are its gradients."""

    def __init__(self, sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tensors = nn.ParameterList(
            torch.randn(size, generator=generator).to(dtype) for size in reversed(sizes)
        )

    def forward(self, *gradients: Tensor) -> Tensor:
        return torch.stack([(p * g).sum() for p, g in zip(self.tensors, gradients, strict=True)]).sum()


class Parts(nn.Module):
    """The same in two parts, for what shards each part by itself."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        super().__init__()
        self.half = len(sizes) // 2
        self.parts = nn.ModuleList(
            Exact(part[::-1]) for part in (sizes[::-1][: self.half], sizes[::-1][self.half :])
        )

    def forward(self, *gradients: Tensor) -> Tensor:
        one, other = self.parts
        found: Tensor = one(*gradients[: self.half]) + other(*gradients[self.half :])
        return found


def gradients(rank: int, step: int, sizes: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Return this rank's gradients of a step, on the host: a part that all ranks share, and a part of its own."""
    made = []
    for seed in (7000 + step, 1000 * (rank + 1) + step):
        generator = torch.Generator().manual_seed(seed)
        made.append([torch.randn(size, generator=generator) for size in reversed(sizes)])
    return [((a + b / 2) ** 3 / 4).to(dtype) for a, b in zip(*made, strict=True)]


class Delays:
    """Waits at random moments on a stream: a GPU stays busy, a CPU's thread sleeps."""

    def __init__(self, device: torch.device, where: Sequence[str], seed: int) -> None:
        self._device, self._where, self._random = device, where, random.Random(seed)

    def wait(self, where: str) -> None:
        """Keep the current stream busy, if ``where`` is delayed and by chance."""
        if where not in self._where or self._random.random() < 0.5:
            return
        share = self._random.random()
        if self._device.type == "cuda":
            torch.cuda._sleep(int(share * CYCLES))
        else:
            time.sleep(0.003 * share)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Delay what the agent does to each bucket, on the stream on which it does it."""
        before = [(kind, name, getattr(kind, name)) for kind, name in DELAYED]

        def delayed(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def method(*arguments: Any, **named: Any) -> Any:
                self.wait("agent")
                result = function(*arguments, **named)
                self.wait("agent")
                return result

            return method

        for kind, name, function in before:
            setattr(kind, name, delayed(function))
        try:
            yield
        finally:
            for kind, name, function in before:
                setattr(kind, name, function)


def train(
    device: torch.device,
    *,
    compressor: str = "topk+bf16",
    cfs: Sequence[float] = (10.0,),
    steps: int = 12,
    window: int = 1,
    delays: Sequence[str] = (),
    infinite_at: int | None = None,
    dtype: str = "float32",
    sizes: Sequence[int] = SIZES,
    scaled: bool = False,
    strict: tuple[int, Callable[[], AbstractContextManager[Any]]] | None = None,
    log: bool = False,
) -> dict[str, Any]:
    """Train ``Exact`` with the agent.

    Args:
        device: Where.
        compressor: The agent's codec.
        cfs: One for each window, again and again.
        steps: How many.
        window: Steps in a window.
        delays: What is delayed: ``agent`` (encoding and decoding), ``trainer`` (gradients and the optimizer).
        infinite_at: The step in which the last rank has an infinite gradient.
        dtype: Of parameters and gradients.
        sizes: Elements of each parameter.
        scaled: Whether a GradScaler scales the loss, by a power of two.
        strict: The step from which on a context holds, and what makes it.
        log: Whether to log each loss as a tensor.

    Returns:
        ``parameters``, a digest, and ``change``, what training added to them (see ``decoded``); ``kept``: whether the
        optimizer left them alone in the step ``infinite_at``; and figures of the agent.
    """
    rank, kind = dist.get_rank(), getattr(torch, dtype)
    wait = Delays(device, delays, seed=rank)
    model = Exact(sizes, kind).to(device)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: wait.wait("trainer"))
    start = [parameter.detach().float().cpu().clone() for parameter in model.parameters()]
    module = DistributedDataParallel(model, bucket_cap_mb=CAP_MB)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**8, enabled=scaled)
    batches = [[g.to(device) for g in gradients(rank, step, sizes, kind)] for step in range(steps)]
    if infinite_at is not None and rank == dist.get_world_size() - 1:
        batches[infinite_at][4][7] = torch.inf
    policy = ScriptedPolicy(*(Play(None, cf) for cf in cfs), again=True)
    kept = None
    agent = Agent(
        module,
        optimizer,
        compressor=compressor,
        collective="gather" if ":" not in compressor else None,
        controller=None,
        policy=policy,
        window=window,
        agreement_seconds=60,
        scaler=scaler if scaled else None,
    )
    buckets = 0
    with agent, ExitStack() as stack:
        assert agent._parts is not None
        stack.enter_context(wait.around())
        for step, batch in enumerate(batches):
            if strict is not None and step == strict[0]:
                stack.enter_context(strict[1]())
            loss = module(*batch)
            scaler.scale(loss).backward()
            buckets = len(agent._session.layout)
            before = [p.detach().clone() for p in module.parameters()] if step == infinite_at else None
            wait.wait("trainer")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if log:
                agent.log(loss=loss)
            if before is not None:
                kept = all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
        stack.close()
        agent.state_dict()  # ends the step in flight, so that all are counted
        state, executor = agent.state, type(agent._parts.executor).__name__
    assert state is not None
    parameters = [parameter.detach().cpu() for parameter in module.parameters()]
    return {
        "parameters": digest(parameters),
        "change": encoded([after.float() - one for after, one in zip(parameters, start, strict=True)]),
        "finite": all(bool(parameter.isfinite().all()) for parameter in parameters),
        "kept": kept,
        "executor": executor,
        "buckets": buckets,
        "steps": state.step,
        "nonfinite_steps": state.nonfinite_steps,
        "dense_bytes": state.dense_bytes,
        "payload_bytes": state.payload_bytes,
    }


def digest(tensors: Sequence[Tensor]) -> str:
    """Return a SHA-256 of the bits of tensors on the host."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(bytes(tensor.flatten().view(torch.uint8).tolist()))
    return found.hexdigest()


def encoded(tensors: Sequence[Tensor]) -> str:
    """Return float32 tensors on the host as text, for JSON."""
    return base64.b64encode(bytes(torch.cat(list(tensors)).view(torch.uint8).tolist())).decode()


def decoded(text: str) -> Tensor:
    """Return what ``encoded`` was given, as one flat tensor."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how far two trainings are apart, relative to the change that ``other`` made to its parameters."""
    mine, theirs = decoded(one["change"]), decoded(other["change"])
    return float((mine - theirs).norm() / theirs.norm())
