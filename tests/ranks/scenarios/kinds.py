"""Kinds of gradients other than dense float32: narrow, complex, sparse; and buckets that cannot be encoded."""

import copy
import json
import logging
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac.memories import BucketMemory
from gravac_agent import Agent
from gravac_agent.exchange.plan import Directive
from tests.ranks.scenarios.model import batch, fingerprint, flat, net, train, wrapped
from tests.ranks.scenarios.undo import on_each_part


class Slopes(nn.Module):
    """float16 parameters whose gradients are what ``forward`` is given."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((64, 32), (700,), (33, 21), (1500,))
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(shape).half()) for shape in shapes])

    def forward(self, slopes: list[Tensor]) -> Tensor:
        return torch.stack([(p * g).sum() for p, g in zip(self.parts, slopes, strict=True)]).sum()


def slopes(module: nn.Module, rank: int, step: int, size: float) -> list[Tensor]:
    """All of about the magnitude ``size``, and of signs that stay: so sums grow until they are sent."""
    found = []
    for number, p in enumerate(module.parameters()):
        sign = torch.randint(0, 2, p.shape, generator=torch.Generator().manual_seed(number)) * 2 - 1
        generator = torch.Generator().manual_seed(100 * step + 10 * rank + number)
        found.append((size * sign * (1 - 0.1 * torch.rand(p.shape, generator=generator))).half())
    return found


def narrow(
    rank: int, world: int, folder: str, size: float, steps: int, dense_at: int = -1, **options: Any
) -> dict[str, Any]:
    """Finite float16 gradients under compression: what is applied is finite, and nothing is lost."""
    module = DistributedDataParallel(Slopes(), bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    names = [name for name, _ in module.module.named_parameters()]
    came = [torch.zeros(p.shape, dtype=torch.float64) for p in module.parameters()]
    went = [torch.zeros(p.shape, dtype=torch.float64) for p in module.parameters()]
    digests, finite, largest = [], True, 0.0
    chosen = {"policy": "static:cf=100", "window": 10} | options
    with Agent(module, optimizer, data_dir=folder, controller=None, job="narrow", **chosen) as agent:
        parts = agent._parts
        assert parts is not None
        for step in range(steps):
            if step == dense_at and parts.reporter is not None:
                parts.reporter.directive = Directive(7, "hold", 1.0, 1.0, 0.0)
            for one in range(world):
                for total, g in zip(came, slopes(module, one, step, size), strict=True):
                    total += g.double() / world
            module(slopes(module, rank, step, size)).backward()
            for total, p in zip(went, module.parameters(), strict=True):
                assert p.grad is not None
                finite &= bool(torch.isfinite(p.grad).all())
                largest = max(largest, float(p.grad.abs().max()))
                total += p.grad.double()
                digests.append(float(p.grad.double().abs().sum()))
            optimizer.step()
            optimizer.zero_grad()
        residuals, skipped = flat(agent)["residual"], parts.loop.totals.nonfinite_steps
        buckets, trace = len(agent._session.layout), agent.trace_path
        worst = 0.0
        for name, total, gone in zip(names, came, went, strict=True):
            mean = residuals.get(name, torch.zeros(gone.numel())).double().view_as(gone)
            dist.all_reduce(mean)
            worst = max(worst, float((total - gone - mean / world).abs().max()) / (size * steps))
    notes = trace is not None and sum(
        "leaves torch.float16" in line for line in trace.read_text().splitlines()
    )
    # After the agent closed, the first plain backward sends the residual, as far as it fits.
    module([torch.zeros_like(p) for p in module.parameters()]).backward()
    finite &= all(bool(torch.isfinite(p.grad).all()) for p in module.parameters() if p.grad is not None)
    return {
        "finite": finite,
        "largest": largest,
        "worst": worst,
        "skipped": skipped,
        "applied": digests,
        "buckets": buckets,
        "notes": notes,
    }


def overflow_of_the_mean(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Each rank's gradient is finite and their mean, summed up in float16, is not: plain DDP would apply infinity."""

    def make() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = DistributedDataParallel(Slopes(), bucket_cap_mb=0.002)
        return module, torch.optim.SGD(module.parameters(), lr=1e-6)

    def step(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, size: float) -> None:
        module([torch.full_like(p, size) for p in module.parameters()]).backward()
        optimizer.step()
        optimizer.zero_grad()

    plain, watched = make(), make()
    step(*plain, 65504.0)
    with Agent(*watched, data_dir=folder, controller=None, policy="dense", window=5) as agent:
        step(*watched, 1.0)
        before = fingerprint(watched[0])
        step(*watched, 65504.0)
        kept = before == fingerprint(watched[0])
        step(*watched, 1.0)
        counted = agent.state.nonfinite_steps if agent.state else -1
    finite = [all(bool(torch.isfinite(p).all()) for p in one.parameters()) for one in (plain[0], watched[0])]
    return {"plain": finite[0], "agent": finite[1], "kept": kept, "counted": counted}


class Mixed(nn.Module):
    """Independent parts: an ordinary net, a complex filter, an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())]
        self.body = nn.Sequential(*layers, nn.Linear(64, 10))
        self.words = nn.Embedding(50, 8, sparse=True)
        self.filter = nn.Parameter(torch.randn(64, 64, dtype=torch.complex64))
        self.phase = nn.Parameter(torch.randn(64, dtype=torch.complex64))

    def forward(self, x: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.fft(x) @ self.filter * self.phase
        return self.body(x), spectrum.abs().mean() + self.words(words).square().sum()

    def pairs(self) -> Tensor:
        return torch.cat([self.filter.detach().flatten(), self.phase.detach()])


def mixed_kinds(rank: int, world: int, folder: str, **options: Any) -> dict[str, Any]:
    """Complex and sparse gradients beside ordinary ones, plainly and with the agent."""

    def make() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = DistributedDataParallel(Mixed(), bucket_cap_mb=0.01)
        return module, torch.optim.SGD(module.parameters(), lr=0.05)

    def steps(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for step in numbers:
            x, y = batch(rank, step)
            # Ranks use different words, and different numbers of them.
            words = torch.arange(1 + 3 * rank + step % 4) * (rank + 2) % 50
            out, extra = module(x, words)
            (nn.functional.cross_entropy(out, y) + extra).backward()
            optimizer.step()
            optimizer.zero_grad()

    plain, watched, again = make(), make(), make()
    steps(*plain, range(24))
    job = {"data_dir": folder, "controller": None, "job": "mixed", "window": 5} | options
    with Agent(*watched, **job) as agent:
        steps(*watched, range(10))
        state = {"agent": flat(agent), "model": watched[0].state_dict()}
        state = copy.deepcopy(state)
        steps(*watched, range(10, 20))
        assert agent._parts is not None
        loop, trace, buckets = agent._parts.loop, agent.trace_path, len(agent._session.layout)
    steps(*watched, range(20, 24))  # with the hook of a closed agent
    with Agent(*again, **job | {"job": "again"}) as agent:
        agent.load_state_dict(state["agent"])
        again[0].load_state_dict(state["model"])
        steps(*again, range(10, 20))
    steps(*again, range(20, 24))
    lines = [] if trace is None else trace.read_text().splitlines()
    start, there, here = (_mixed(one).pairs() for one in (make()[0], plain[0], watched[0]))
    return {
        "plain": fingerprint(plain[0]),
        "agent": fingerprint(watched[0]),
        "resumed": fingerprint(again[0]),
        "words": [fingerprint(_mixed(one).words) for one in (plain[0], watched[0])],
        "off": float((here - there).norm() / (there - start).norm()),
        "pairs": state["agent"]["residual"].get("filter", torch.zeros(0)).numel(),
        "failed": loop.totals.failed_steps,
        "buckets": buckets,
        "saved": loop.totals.dense_bytes / loop.totals.payload_bytes,
        "notes": sum("are sparse" in line for line in lines),
    }


def _mixed(module: DistributedDataParallel) -> Mixed:
    assert isinstance(module.module, Mixed)
    return module.module


class Hollow(nn.Module):
    """A net with parameters of no element: some beside others in a bucket, some in buckets of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(layers=4)
        self.none = nn.ParameterList([torch.empty(0), torch.empty(5, 0), torch.empty(0, 3)])
        kinds = (torch.float16, torch.bfloat16, torch.float64)  # DDP makes a bucket for each
        self.narrow = nn.ParameterList([torch.empty(0, dtype=dtype) for dtype in kinds])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out + sum(one.sum().float() for one in (*self.none, *self.narrow))


def without_elements(rank: int, world: int, folder: str, **options: Any) -> dict[str, Any]:
    """The same training with and without parameters of no element, beside the one with them."""
    found: dict[str, Any] = {}
    for name, made in (("full", net(layers=4)), ("hollow", Hollow())):
        module = DistributedDataParallel(made, bucket_cap_mb=0.01)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        chosen = {"policy": "static:cf=10", "window": 4, "job": name} | options
        with Agent(module, optimizer, data_dir=folder, controller=None, **chosen) as agent:
            for step in range(10):
                train(module, optimizer, rank, range(step, step + 1))
            assert agent._parts is not None
            loop, sizes = agent._parts.loop, [sum(bucket.numels) for bucket in agent._session.layout]
            state = agent.state_dict()
        with Agent(
            module, optimizer, data_dir=folder, controller=None, **chosen | {"job": f"{name}2"}
        ) as agent:
            agent.load_state_dict(state)
            train(module, optimizer, rank, range(10, 14))
        train(module, optimizer, rank, range(14, 16))  # with the residual of a closed agent
        body = module.module.body if isinstance(module.module, Hollow) else module.module
        found[name] = fingerprint(body)  # type: ignore[arg-type]
        found[f"{name} failed"] = loop.totals.failed_steps
        found[f"{name} saved"] = loop.totals.dense_bytes / loop.totals.payload_bytes
        found[f"{name} sizes"] = sizes
    return found


def keeps_failing(rank: int, world: int, folder: str) -> dict[str, Any]:
    """From step 5 on one rank cannot compress one bucket any more; another one fails it once."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options: dict[str, Any] = {"controller": None, "policy": "static:cf=10", "window": 5, "job": "fails"}
    sent: list[int] = []
    with Agent(module, optimizer, data_dir=folder, compressor="randomk", **options) as agent:
        parts = agent._parts
        assert parts is not None
        codec = parts.channels.aggregator.compressor  # type: ignore[attr-defined]
        compress = codec.compress
        now = {"step": 0, "target": 0}

        def broken(x: Tensor, *rest: Any) -> Any:
            hit = x.numel() == now["target"]
            if hit and ((rank == 1 and now["step"] >= 5) or (rank == 2 and now["step"] == 2)):
                raise RuntimeError("deliberate")
            return compress(x, *rest)

        codec.compress = broken  # type: ignore[method-assign]
        before = 0
        for step in range(14):
            now["step"] = step
            train(module, optimizer, rank, range(step, step + 1))
            if step == 1:
                now["target"] = sum(agent._session.layout[0].numels)  # there is no other of this size
            sent.append(parts.loop.totals.payload_bytes - before)
            before = parts.loop.totals.payload_bytes
        failed, names = parts.loop.totals.failed_steps, agent._session.layout[0].names
        residuals = flat(agent)["residual"]
        buckets, trace = len(agent._session.layout), agent.trace_path
        agent.switch(compressor="topk")  # another codec is tried again
        train(module, optimizer, rank, range(14, 19))
        before = parts.loop.totals.payload_bytes
        train(module, optimizer, rank, range(19, 20))
        late = parts.loop.totals.payload_bytes - before
        others = [name for bucket in agent._session.layout if bucket.number for name in bucket.names]
    events = [] if trace is None else [json.loads(line) for line in trace.read_text().splitlines()]
    return {
        "parameters": fingerprint(module),
        "failed": failed,
        "residuals": [name in residuals for name in names],
        "others_residuals": sum(name in residuals for name in others),
        "sent": sent,
        "late": late,
        "buckets": buckets,
        "said": sum("keeps failing" in json.dumps(event) for event in events),
        "finite": all(bool(torch.isfinite(p).all()) for p in module.parameters()),
    }


def cannot_decode(rank: int, world: int, folder: str, culprits: list[int], **options: Any) -> dict[str, Any]:
    """Some ranks cannot decode one bucket, ever. Beside it plain DDP, for the gradients of the first step."""
    plain, module = wrapped(buckets=4), wrapped(buckets=4)
    for one in (plain, module):  # DDP regroups its buckets after the first step
        nn.functional.cross_entropy(one(batch(rank, 0)[0]), batch(rank, 0)[1]).backward()
        one.zero_grad()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    chosen = {"controller": None, "policy": "static:cf=10", "window": 5, "job": "undecodable"} | options
    with Agent(module, optimizer, data_dir=folder, **chosen) as agent:
        assert agent._parts is not None
        loop, codec = agent._parts.loop, agent._parts.channels.aggregator.compressor  # type: ignore[attr-defined]
        decompress = codec.decompress
        hits, own = [], []

        def updated(update: Any, *given: Any) -> Any:  # decodes what this rank sent
            own.append(True)
            try:
                return update(*given)
            finally:
                own.pop()

        def broken(payload: Any, out: Tensor, *more: Any) -> Any:
            if out.numel() == target and rank in culprits and not own:
                hits.append(loop.step)
                raise TypeError("deliberate")
            return decompress(payload, out, *more)

        target = sum(p.numel() for p in list(module.parameters())[-4:])
        codec.decompress = broken
        on_each_part(agent._parts.memory, lambda part: setattr(part, "update", partial(updated, part.update)))
        same, sent, before = [], [], 0
        for step in range(12):
            plain.load_state_dict(module.state_dict())
            plain.zero_grad()
            cf, (x, y) = loop.plan.cf, batch(rank, step)
            nn.functional.cross_entropy(plain(x), y).backward()
            nn.functional.cross_entropy(module(x), y).backward()
            pairs = [
                bool(torch.equal(a.grad, b.grad))  # type: ignore[arg-type]
                for a, b in zip(module.parameters(), plain.parameters(), strict=True)
            ]
            same.append([cf > 1.0, all(pairs[-4:]), all(pairs[:-4])])
            optimizer.step()
            optimizer.zero_grad()
            sent.append(loop.totals.payload_bytes - before)
            before = loop.totals.payload_bytes
        layout = [sum(bucket.numels) for bucket in agent._session.layout]
        residuals = flat(agent)["residual"]
        trace = agent.trace_path
        names = [name for name, _ in module.module.named_parameters()]
    lines = [] if trace is None else trace.read_text().splitlines()
    return {
        "parameters": fingerprint(module),
        "hits": hits,
        "same": same,
        "sent": sent,
        "layout": [target, layout],
        "residuals": [name in residuals for name in (names[-4], names[0])],
        "said": sum("cannot decode" in line for line in lines),
    }


def memory_fails(rank: int, world: int, folder: str, method: str, **options: Any) -> dict[str, Any]:
    """From step 5 on the memory of one rank fails on one bucket, in dense steps too. Beside it plain DDP."""
    plain, module = wrapped(buckets=4), wrapped(buckets=4)
    for one in (plain, module):  # DDP regroups its buckets after the first step
        nn.functional.cross_entropy(one(batch(rank, 0)[0]), batch(rank, 0)[1]).backward()
        one.zero_grad()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    chosen = {"controller": None, "policy": "static:cf=10", "window": 5, "job": "forgetful"} | options
    errors: list[int] = []
    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda record: errors.append(step)  # type: ignore[method-assign]
    logging.getLogger("gravac.agent").addHandler(listener)
    with Agent(module, optimizer, data_dir=folder, **chosen) as agent:
        assert agent._parts is not None
        loop, memory = agent._parts.loop, agent._parts.memory
        names = tuple(name for name, _ in module.module.named_parameters())[-4:]
        real_state_dict = memory.state_dict

        def broken(real: Any, *given: Any, **more: Any) -> Any:
            if rank == 1 and step >= 5:
                raise RuntimeError("deliberate")
            return real(*given, **more)

        def breaks(part: BucketMemory) -> None:
            for name in ("update",) if method == "update" else ("pending_sum", "compensate"):
                if set(part.bucket.names) == set(names):
                    setattr(part, name, partial(broken, getattr(part, name)))

        def state_dict() -> dict[str, Tensor]:
            state = real_state_dict()
            if rank == 1 and step >= 5 and not state.keys().isdisjoint(names):
                raise RuntimeError("deliberate")
            return state

        on_each_part(memory, breaks)
        memory.state_dict = state_dict  # type: ignore[method-assign]
        same = []
        for step in range(14):
            plain.load_state_dict(module.state_dict())
            plain.zero_grad()
            x, y = batch(rank, step)
            nn.functional.cross_entropy(plain(x), y).backward()
            nn.functional.cross_entropy(module(x), y).backward()
            pairs = [
                bool(torch.equal(a.grad, b.grad))  # type: ignore[arg-type]
                for a, b in zip(module.parameters(), plain.parameters(), strict=True)
            ]
            same.append([all(pairs[-4:]), all(pairs[:-4])])
            optimizer.step()
            optimizer.zero_grad()
        residuals = flat(agent)["residual"]
        failed, trace = loop.totals.failed_steps, agent.trace_path
        held, others = (any(name in residual for residual in residuals) for name in (names[0], "0.weight"))
    logging.getLogger("gravac.agent").removeHandler(listener)
    lines = [] if trace is None else trace.read_text().splitlines()
    return {
        "parameters": fingerprint(module),
        "failed": failed,
        "errors": errors,
        "same": same,
        "held": [held, others],
        "said": [sum(what in line for line in lines) for what in ("sent densely", "error memory keeps")],
    }
