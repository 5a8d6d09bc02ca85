"""What the ranks of the distributed tests do. Every function runs on each rank and returns what the test compares."""

import ctypes
import hashlib
import json
import math
import os
import random
import re
import signal
import time
import urllib.request
from typing import Any

import torch
import torch.distributed as dist
from ranks.simulation import simulate
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent, AgreementError, SetupError
from gravac_agent.link import Link
from gravac_agent.plan import Directive, Plan


def each_of(
    rank: int, world: int, folder: str, which: str, cases: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One scenario with several sets of arguments, in one set of processes: starting those takes longest."""
    function = globals()[which]
    return [function(rank, world, f"{folder}/{number}", **case) for number, case in enumerate(cases)]


def net(width: int = 64, layers: int = 8, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    stack: list[nn.Module] = []
    for _ in range(layers):
        stack += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*stack, nn.Linear(width, 10))


def wrapped(buckets: int = 8, **options: Any) -> DistributedDataParallel:
    """A net in DDP with about that many buckets (1: exactly one, 2: exactly two)."""
    model = net()
    total = sum(parameter.numel() for parameter in model.parameters()) * 4
    shares = {1: 0.5, 2: 1.8}.get(buckets, 2 * buckets)  # DDP closes a bucket when it is past the cap
    cap = total / shares / 2**20
    return DistributedDataParallel(model, bucket_cap_mb=cap, **options)


def batch(rank: int, step: int, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, width, generator=generator)
    return x, (x[:, :10].sum(1) > 0).long() + 3 * (x[:, 0] > 1).long()


def fingerprint(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in module.parameters():
        whole = parameter.detach().contiguous()
        digest.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return digest.hexdigest()


def train(
    module: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: range,
    each: Any = None,
) -> float:
    loss = torch.tensor(math.nan)
    for step in steps:
        x, y = batch(rank, step)
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        if each is not None:
            each(step)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def same_as_ddp(
    rank: int, world: int, folder: str, how: str, steps: int = 50, **options: Any
) -> dict[str, Any]:
    """Train plainly and with the agent at CF 1 or not enabled; parameters must be the same bits."""
    results = []
    for with_agent in (False, True):
        module = wrapped(**options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        if with_agent:
            chosen: dict[str, Any] = (
                {"enabled": False} if how == "disabled" else {"policy": "dense", "controller": None}
            )
            with Agent(module, optimizer, data_dir=folder, **chosen):
                train(module, optimizer, rank, range(steps))
        else:
            train(module, optimizer, rank, range(steps))
        results.append(fingerprint(module))
    return {"plain": results[0], "agent": results[1]}


def switching(
    rank: int, world: int, folder: str, steps: int, every: int, compressor: str = "topk"
) -> dict[str, Any]:
    """CF switched every few steps, random delays before each step and in each bucket."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    delays = random.Random(rank)
    cfs = [1.0, 10.0, 40.0, 3.0, 160.0, 1000.0, 1.5]
    sent = set()
    with Agent(
        module,
        optimizer,
        data_dir=folder,
        controller=None,
        policy="static:cf=10",
        compressor=compressor,
        window=every,
    ) as agent:
        parts = agent._parts
        assert parts is not None
        buckets = 0
        submit = parts.engine.submit

        def counting(bucket: Any, buffer: Any, last: bool) -> Any:
            nonlocal buckets
            buckets = max(buckets, bucket.number + 1)
            if delays.random() < 0.05:
                time.sleep(delays.random() * 0.004)
            return submit(bucket, buffer, last)

        parts.engine.submit = counting  # type: ignore[method-assign]

        def switch(step: int) -> None:
            if step % every == 0 and parts.desk is not None:
                cf = cfs[(step // every) % len(cfs)]
                parts.desk.directive = Directive(step // every, "explore", min(cf, 10.0), cf, 0.0)
            if delays.random() < 0.1:
                time.sleep(delays.random() * 0.01)
            sent.add(agent.state.cf if agent.state else None)

        loss = train(module, optimizer, rank, range(steps), switch)
        dense, payload = parts.loop.dense_bytes, parts.loop.payload_bytes
    return {
        "parameters": fingerprint(module),
        "loss": loss,
        "buckets": buckets,
        "sent": sorted(sent),
        "dense_bytes": dense,
        "payload_bytes": payload,
    }


def nonfinite(
    rank: int, world: int, folder: str, at: int, cf: float, compressor: str, value: str
) -> dict[str, Any]:
    """One rank gets a non-finite gradient at one step; the residual before and after it is compared."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    bad = {"step": -1}
    first = next(module.module.parameters())
    first.register_hook(
        lambda grad: grad.index_fill(0, torch.tensor([3]), float(value)) if bad["now"] else grad
    )
    bad["now"] = False
    spoiled: dict[str, Any] = {}
    options: dict[str, Any] = {"policy": f"static:cf={cf}" if cf > 1 else "dense"}
    options["compressor"], _, collective = compressor.partition(" by ")
    options["collective"] = collective or "gather"
    with Agent(module, optimizer, data_dir=folder, controller=None, window=5, **options) as agent:
        for step in range(at + 6):
            bad["now"] = step == at and rank == world - 1
            before = None
            if step == at and agent._parts:
                before = agent._parts.memory.state_dict(), fingerprint(module)
            x, y = batch(rank, step)
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            seen_bad = not all(
                bool(torch.isfinite(p.grad).all()) for p in module.parameters() if p.grad is not None
            )
            optimizer.step()
            optimizer.zero_grad()
            if before is not None and agent._parts:
                after = agent._parts.memory.state_dict()
                spoiled = {
                    "every_rank_saw_it": seen_bad,
                    "parameters_kept": before[1] == fingerprint(module),
                    "residual_kept": before[0].keys() == after.keys()
                    and all(torch.equal(before[0][k], after[k]) for k in after),
                    "residual_elements": sum(t.numel() for t in after.values()),
                }
        finite = all(bool(torch.isfinite(p).all()) for p in module.parameters())
        clean = (
            all(bool(torch.isfinite(t).all()) for t in agent._parts.memory.state_dict().values())
            if agent._parts
            else False
        )
        counted = agent.state.nonfinite_steps if agent.state else -1
    return {
        **spoiled,
        "finite": finite,
        "clean": clean,
        "counted": counted,
        "loss": float(loss.detach()),
        "parameters": fingerprint(module),
    }


def conserved(rank: int, world: int, folder: str, compressor: str, steps: int = 40) -> dict[str, Any]:
    """P10: the sum of what was applied plus the mean of what is owed is the sum of the mean gradients."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    names = [name for name, _ in module.module.named_parameters()]
    start = [p.detach().double().clone() for p in module.parameters()]
    plain = net()
    expected = [torch.zeros_like(p, dtype=torch.float64) for p in plain.parameters()]
    with Agent(
        module,
        optimizer,
        data_dir=folder,
        controller=None,
        policy="static:cf=20",
        compressor=compressor,
        window=7,
    ) as agent:
        for step in range(steps):
            plain.load_state_dict(module.module.state_dict())
            for one in range(world):  # the dense mean gradient at the same parameters
                plain.zero_grad()
                x, y = batch(one, step)
                nn.functional.cross_entropy(plain(x), y).backward()
                for total, p in zip(expected, plain.parameters(), strict=True):
                    assert p.grad is not None
                    total += p.grad.double() / world
            train(module, optimizer, rank, range(step, step + 1))
        assert agent._parts is not None
        owed = agent._parts.memory.state_dict()
        worst = share = 0.0
        for name, p, begun, total in zip(names, module.parameters(), start, expected, strict=True):
            residual = owed[name].double().view_as(p)
            dist.all_reduce(residual)
            applied = begun - p.detach().double()
            worst = max(worst, float((applied + residual / world - total).abs().max()))
            share = max(share, float((residual / world).abs().max()))
    # After the agent closed, the first plain backward hands out what is owed.
    before = [p.detach().double().clone() for p in module.parameters()]
    optimizer.zero_grad()
    x, _ = batch(rank, steps)
    (module(x).sum() * 0.0).backward()
    optimizer.step()
    flushed = 0.0
    for name, p, begun in zip(names, module.parameters(), before, strict=True):
        residual = owed[name].double().view_as(p)
        dist.all_reduce(residual)
        flushed = max(flushed, float((begun - p.detach().double() - residual / world).abs().max()))
    return {"worst": worst, "largest_owed": share, "flushed": flushed}


def disagreement(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Rank 1 is made to plan another CF: both ranks must learn of it before a collective of another shape."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    issued: list[float] = []
    try:
        with Agent(
            module, optimizer, data_dir=folder, controller=None, policy="static:cf=10", window=50
        ) as agent:
            parts = agent._parts
            assert parts is not None
            begin = parts.engine.begin

            def note(plan: Plan, number: int) -> None:
                issued.append(plan.cf)
                begin(plan, number)

            parts.engine.begin = note  # type: ignore[method-assign]

            def spoil(step: int) -> None:
                if step == 20 and rank == 1:
                    parts.loop.following = Plan(parts.loop.following.directive, 20.0)

            for step in range(40):
                spoil(step)
                train(module, optimizer, rank, range(step, step + 1))
    except AgreementError as error:
        return {"error": str(error), "issued": sorted(set(issued)), "step": len(issued)}
    return {"error": None, "issued": sorted(set(issued)), "step": len(issued)}


def settings_differ(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Ranks started with different windows."""
    module = wrapped()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    try:
        with Agent(module, optimizer, data_dir=folder, controller=None, window=10 + rank, policy="dense"):
            pass
    except AgreementError as error:
        return {"error": str(error)}
    return {"error": None}


def failing_codec(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Compression raises on one rank at one step: no lone fallback, nothing lost, ranks stay equal."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=10", window=5) as agent:
        parts = agent._parts
        assert parts is not None
        codec = parts.engine.encoder.aggregator.compressor  # type: ignore[attr-defined]
        compress = codec.compress
        armed = {"now": False}

        def broken(*arguments: Any) -> Any:
            if armed["now"]:
                raise RuntimeError("deliberate")
            return compress(*arguments)

        codec.compress = broken  # type: ignore[method-assign]
        for step in range(20):
            armed["now"] = step == 10 and rank == 1
            train(module, optimizer, rank, range(step, step + 1))
        owed = sum(float(t.abs().sum()) for t in parts.memory.state_dict().values())
    return {"parameters": fingerprint(module), "owed": owed}


def resumed(rank: int, world: int, folder: str, compressor: str, loaded_ranks: str = "own") -> dict[str, Any]:
    """20 steps in one go against 10, a checkpoint on disk (weights_only), and 10 more in new objects."""

    def make() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = wrapped(buckets=8)
        return module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def decay(optimizer: torch.optim.Optimizer) -> Any:
        def lower(step: int) -> None:
            optimizer.param_groups[0]["lr"] = 0.05 * 0.9**step

        return lower

    options: dict[str, Any] = {
        "data_dir": folder,
        "controller": None,
        "policy": "static:cf=25",
        "compressor": compressor,
        "window": 5,
    }
    module, optimizer = make()
    with Agent(module, optimizer, job="whole", **options):
        train(module, optimizer, rank, range(20), decay(optimizer))
    whole = fingerprint(module)
    module, optimizer = make()
    path = f"{folder}/state{rank}.pt"
    with Agent(module, optimizer, job="first", **options) as agent:
        train(module, optimizer, rank, range(10), decay(optimizer))
        torch.save(
            {"agent": agent.state_dict(), "model": module.state_dict(), "optimizer": optimizer.state_dict()},
            path,
        )
    module, optimizer = make()
    # DDP regroups its buckets after the first step: resume must not depend on them.
    with Agent(module, optimizer, job="second", **options) as agent:
        state = torch.load(path, weights_only=True)
        agent.load_state_dict(state["agent"])
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(module, optimizer, rank, range(10, 20), decay(optimizer))
    return {"whole": whole, "resumed": fingerprint(module)}


def controller_dies(
    rank: int, world: int, folder: str, kills: list[int], steps: int, window: int = 10
) -> dict[str, Any]:
    """A job with its own controller process, killed (SIGKILL) before the given steps."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    longest, killed = 0.0, []
    with Agent(
        module, optimizer, data_dir=folder, job="killed", policy="gravac:warmup_windows=1", window=window
    ) as agent:
        ready = agent.wait_ready(60)
        dist.barrier()
        desk = agent._parts.desk if agent._parts else None
        for step in range(steps):
            if step in kills and desk is not None:
                pid = desk._process.pid  # type: ignore[attr-defined]
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            begun = time.monotonic()
            train(module, optimizer, rank, range(step, step + 1))
            agent.log(loss=1.0 + step)
            longest = max(longest, time.monotonic() - begun)
            time.sleep(0.01)
        if desk is not None:
            until = time.monotonic() + 60
            while desk._pending and time.monotonic() < until:  # type: ignore[attr-defined]
                time.sleep(0.05)
        dist.barrier()
        last = desk._process.pid if desk is not None else None  # type: ignore[attr-defined]
        url = agent.url
    return {
        "parameters": fingerprint(module),
        "ready": ready,
        "killed": killed,
        "last_pid": last,
        "longest": longest,
        "url": url,
    }


def controller_missing(rank: int, world: int, folder: str, url: str, steps: int) -> dict[str, Any]:
    """The controller's address answers nobody: training goes on dense."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    options: dict[str, Any] = {
        "controller": url,
        "window": 5,
        "policy": "static:cf=10",
        "request_seconds": 0.5,
    }
    with Agent(module, optimizer, data_dir=folder, fallback_windows=2, **options) as agent:
        longest, phases = 0.0, []
        for step in range(steps):
            begun = time.monotonic()
            train(module, optimizer, rank, range(step, step + 1))
            longest = max(longest, time.monotonic() - begun)
            phases.append(agent.state.phase if agent.state else "")
        last = agent.state.cf if agent.state else 0
        begun = time.monotonic()
    return {
        "parameters": fingerprint(module),
        "longest": longest,
        "phases": phases,
        "cf": last,
        "closing": time.monotonic() - begun,
    }


def monitored(rank: int, world: int, folder: str, url: str, job: str) -> dict[str, Any]:
    """Trains over a slow link until ``folder/stop`` is there; from ``folder/fault`` on, each fourth gradient is bad."""
    module = wrapped(buckets=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    steps, bad = 0, 0
    options: dict[str, Any] = {"policy": "gravac:warmup_windows=2", "window": 10, "link": "20mbit"}
    with Agent(module, optimizer, controller=url, job=job, data_dir=folder, **options) as agent:
        while True:
            orders = [os.path.exists(f"{folder}/{order}") for order in ("stop", "fault")]
            told = torch.tensor(orders, dtype=torch.int8)
            dist.broadcast(told, 0)  # all ranks obey at the same step
            stop, fault = told.tolist()
            if stop:
                return {"steps": steps, "bad": bad}
            x, y = batch(rank, steps)
            spoilt = bool(fault) and steps % 4 == 0
            loss = nn.functional.cross_entropy(module(x), y) * (math.nan if spoilt and rank == 1 else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            agent.log(loss=loss)
            steps, bad = steps + 1, bad + spoilt


def same_job_twice(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A trainer started again under the same job name, each time with a controller of its own."""
    epochs = []
    for _ in range(2):
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        with Agent(
            module, optimizer, data_dir=folder, job="twice", policy="gravac:warmup_windows=1", window=10
        ) as agent:
            agent.wait_ready(60)
            dist.barrier()
            train(module, optimizer, rank, range(45))
            epochs.append(agent.state.epoch if agent.state else -1)
    return {"parameters": fingerprint(module), "epochs": epochs}


def steered(
    rank: int, world: int, folder: str, token: str, orders: dict[str, dict[str, Any]], steps: int
) -> dict[str, Any]:
    """A job whose own controller is given ``orders`` (by step) over HTTP; what each step sent, and its epoch."""
    os.environ["GRAVAC_CONTROLLER_CONTROL_TOKEN"] = token
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    sent: list[tuple[float, int]] = []
    options: dict[str, Any] = {"policy": "static:cf=10", "window": 10, "settle_steps": 0}
    with Agent(module, optimizer, data_dir=folder, job="steered", **options) as agent:
        assert agent.wait_ready(60)
        dist.barrier()
        desk = agent._parts.desk if agent._parts else None
        for step in range(steps):
            if desk is not None and str(step) in orders:
                _order(agent.url or "", token, orders[str(step)])
            if step % 10 == 5:  # the decision on the last window is there before this one is over
                until = time.monotonic() + 60
                while desk is not None and desk._pending and time.monotonic() < until:  # type: ignore[attr-defined]
                    time.sleep(0.01)
                dist.barrier()
            train(module, optimizer, rank, range(step, step + 1))
            assert agent.state is not None
            sent.append((agent.state.cf, agent.state.epoch))
    return {"sent": sent, "parameters": fingerprint(module)}


def _order(url: str, token: str, order: dict[str, Any]) -> None:
    path = f"{url}/v1/jobs/steered/override"
    with urllib.request.urlopen(path) as answer:
        seen = answer.headers["ETag"]
    headers = {"If-Match": seen, "Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(path, json.dumps(order).encode(), headers, method="PUT")
    urllib.request.urlopen(request).close()


class Branchy(nn.Module):
    """A net whose second branch is used on every third step only, and not at all on the last rank."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = net(), nn.Linear(64, 64), nn.Linear(10, 10)
        self.use_side = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.use_side:
            x = self.side(x)
        return self.head(self.body(x))


def styled_steps(
    module: DistributedDataParallel, optimizer: torch.optim.Optimizer, style: str, rank: int, world: int
) -> float | None:
    """30 steps in one of the styles; returns the loss scale where there is one."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7) if style == "amp" else None
    for step in range(30):
        x, y = batch(rank, step)
        if style == "unused_parameters":
            module.module.use_side = step % 3 == 0 and rank < world - 1  # type: ignore[assignment]
        if style == "accumulation":
            with module.no_sync():
                nn.functional.cross_entropy(module(x), y).backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=style == "amp"):
            loss = nn.functional.cross_entropy(module(x), y)
        if scaler is None:
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return scaler.get_scale() if scaler else None


def training_styles(rank: int, world: int, folder: str, style: str, policy: str) -> dict[str, Any]:
    """The ways people train: each plainly and with the agent; returns both fingerprints."""

    def make() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        torch.manual_seed(0)
        options: dict[str, Any] = {"bucket_cap_mb": 0.02}
        if style in ("gradient_as_bucket_view", "static_graph"):
            options[style] = True
        if style == "unused_parameters":
            options["find_unused_parameters"] = True
        module = DistributedDataParallel(Branchy() if style == "unused_parameters" else net(), **options)
        return module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    plain = make()
    styled_steps(*plain, style, rank, world)
    watched = make()
    with Agent(*watched, data_dir=folder, controller=None, policy=policy, window=5) as agent:
        scale = styled_steps(*watched, style, rank, world)
        steps = agent.state.step if agent.state else 0
    return {"plain": fingerprint(plain[0]), "agent": fingerprint(watched[0]), "steps": steps, "scale": scale}


def overflow_under_amp(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A GradScaler sees an overflow on one rank: every rank skips the step, halves the scale, keeps its residual."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
    bad = {"now": False}
    next(module.module.parameters()).register_hook(lambda grad: grad * float("inf") if bad["now"] else grad)
    scales, kept = [], True
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=10", window=5) as agent:
        assert agent._parts is not None
        for step in range(12):
            bad["now"] = step == 6 and rank == 1
            before = fingerprint(module), agent._parts.memory.state_dict()
            x, y = batch(rank, step)
            scaler.scale(nn.functional.cross_entropy(module(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            if step == 6:
                agent.state_dict()  # ends the step
                after = agent._parts.memory.state_dict()
                kept = before[0] == fingerprint(module) and all(
                    torch.equal(after[k], before[1][k]) for k in after
                )
    return {"scales": scales, "kept": kept, "parameters": fingerprint(module)}


def two_groups(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Data parallelism inside groups of two: an agent in each, with settings of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = rank // 2
    module = DistributedDataParallel(net(seed=mine), process_group=groups[mine], bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(
        module, optimizer, data_dir=folder, controller=None, policy=f"static:cf={10 + 10 * mine}", window=5
    ) as agent:
        train(module, optimizer, rank, range(17))
        job = agent.state.job if agent.state else ""
    dist.barrier()  # rank 0 keeps the store that the other group needs while it starts
    return {"parameters": fingerprint(module), "job": job}


def unstable_memory(rank: int, world: int, folder: str, memory: str) -> dict[str, Any]:
    """A memory that cannot hold what the codec leaves out, by proven bounds: the agent says so in the journal."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    options: dict[str, Any] = {"policy": "static:cf=10", "memory": memory, "compressor": "randomk"}
    with Agent(
        module, optimizer, data_dir=folder, controller=None, job="unstable", window=5, **options
    ) as agent:
        train(module, optimizer, rank, range(12))
        assert agent.state is not None
        held = agent.state.memory_bytes
    return {"parameters": fingerprint(module), "memory_bytes": held}


def every_codec(rank: int, world: int, folder: str, names: list[str], buckets: int) -> dict[str, Any]:
    """A short job with each member, one after the other, at CF 8, which rank 0 then simulates."""
    return {name: _one_codec(rank, world, folder, name, buckets) for name in names}


def _one_codec(rank: int, world: int, folder: str, name: str, buckets: int) -> dict[str, Any]:
    module = wrapped(buckets=buckets)
    start = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    cfs, layouts = [], []
    codec, _, collective = name.partition(" by ")
    options: dict[str, Any] = {
        "policy": "static:cf=8",
        "compressor": codec,
        "collective": collective or "gather",
        "job": re.sub(r"\W", "-", f"{name}-{buckets}"),
    }
    with Agent(module, optimizer, data_dir=folder, controller=None, window=6, **options) as agent:
        assert agent._parts is not None
        loop = agent._parts.loop
        for step in range(7):
            cfs.append(loop.plan.cf)
            loss = train(module, optimizer, rank, range(step, step + 1))
            layouts.append([list(bucket.names) for bucket in agent._layout])
    found = {
        "parameters": fingerprint(module),
        "loss": loss,
        "cfs": cfs,
        "buckets": len(layouts[-1]),
        "failed": loop.failed_steps,
        "saved": loop.dense_bytes / loop.payload_bytes,
    }
    if rank == 0:
        options = {"compressor": codec, "collective": collective or "gather", "memory": "residual"}
        options |= {"cfs": cfs, "layouts": layouts, "rate": 0.02}
        expected = simulate(net, batch, world=world, **options)
        moved = sum(float((one - begun).square().sum()) for one, begun in zip(expected, start, strict=True))
        pairs = zip(expected, module.parameters(), strict=True)
        off = sum(float((one - ours.detach()).square().sum()) for one, ours in pairs)
        found |= {"off_ratio": math.sqrt(off / moved)}
    return found


def switched(rank: int, world: int, folder: str, stages: list[dict[str, str]]) -> dict[str, Any]:
    """Codec and memory changed every few steps: what is owed before and after each change, and a run to the end."""
    module = wrapped(buckets=6)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    moved, owed, cfs = [], [], []
    options: dict[str, Any] = {"policy": "static:cf=8", "job": "switched", "window": 5}
    with Agent(module, optimizer, data_dir=folder, controller=None, **options) as agent:
        assert agent._parts is not None
        loss = train(module, optimizer, rank, range(6))
        for number, stage in enumerate(stages):
            before = agent.state_dict()["residual"]
            agent.switch(**stage)
            after = agent._parts.memory.state_dict()
            moved.append(max(float((before[name] - after[name]).abs().max()) for name in before))
            owed.append(max(float(value.abs().max()) for value in before.values()))
            loss = train(module, optimizer, rank, range(6 * number + 6, 6 * number + 12))
            cfs.append(agent.state.cf if agent.state else 0)
    return {"parameters": fingerprint(module), "loss": loss, "moved": moved, "owed": owed, "cfs": cfs}


def switched_differently(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Ranks told to switch to different codecs; then to one that there is not."""
    module = wrapped()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    said = []
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=8", window=5) as agent:
        train(module, optimizer, rank, range(4))
        for compressor in ("topk" if rank else "qsgd", "nope"):
            try:
                agent.switch(compressor=compressor)
            except (AgreementError, SetupError) as error:
                said.append(f"{type(error).__name__}: {error}")
        loss = train(module, optimizer, rank, range(4, 8))
    return {"said": said, "loss": loss, "parameters": fingerprint(module)}


def momentum_in_the_memory(rank: int, world: int, folder: str) -> dict[str, Any]:
    """The optimiser's momentum against the memory's, without compression; then DGC as a whole."""

    def trained(momentum: float, **options: Any) -> tuple[list[torch.Tensor], float]:
        module = wrapped(buckets=6)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=momentum)
        with Agent(module, optimizer, data_dir=folder, controller=None, window=5, **options) as agent:
            train(module, optimizer, rank, range(25))
            cf = agent.state.cf if agent.state else 0.0
        return [one.detach() for one in module.parameters()], cf

    theirs, _ = trained(0.9, policy="dense", job="theirs")
    ours, _ = trained(0.0, policy="dense", memory="momentum:momentum=0.9", job="ours")
    start = list(net().parameters())
    apart = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    moved = max(float((a - b.detach()).abs().max()) for a, b in zip(ours, start, strict=True))
    dgc = {"compressor": "dgc", "memory": "momentum:clip=1", "policy": "warmup:cf=100,windows=1"}
    whole, cf = trained(0.0, job="dgc", **dgc)
    finite = all(bool(one.isfinite().all()) for one in whole)
    digest = hashlib.sha256(
        b"".join(bytes(one.view(torch.uint8).flatten().tolist()) for one in whole)
    ).hexdigest()
    return {"apart": apart, "moved": moved, "cf": cf, "finite": finite, "parameters": digest}


def many_steps(
    rank: int, world: int, folder: str, compressor: str, buckets: int, steps: int
) -> dict[str, Any]:
    """One codec for many steps, at a CF that it takes as its own setting says."""
    module = wrapped(buckets=buckets)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    options: dict[str, Any] = {"compressor": compressor, "policy": "static:cf=2", "window": steps // 20}
    with Agent(module, optimizer, data_dir=folder, controller=None, **options) as agent:
        loss = train(module, optimizer, rank, range(steps))
        assert agent._parts is not None
        loop, seen = agent._parts.loop, len(agent._layout)
    return {
        "parameters": fingerprint(module),
        "loss": loss,
        "buckets": seen,
        "steps": loop.step,
        "saved": loop.dense_bytes / loop.payload_bytes,
    }


def chosen_collectives(rank: int, world: int, folder: str) -> dict[str, Any]:
    """``auto`` by a link that has no latency, by what is measured, as a checkpoint has it, and switched in mid-job;
    then by checkpoints that differ."""

    def job(name: str, **options: Any) -> tuple[Agent, DistributedDataParallel, torch.optim.Optimizer]:
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        options |= {"policy": "static:cf=10", "collective": "auto", "window": 3, "job": name}
        return Agent(module, optimizer, data_dir=folder, controller=None, **options), module, optimizer

    found: dict[str, Any] = {}
    agent, module, optimizer = job("linked", link=Link(bits_per_second=1e10))
    with agent:
        train(module, optimizer, rank, range(1))
        early = agent.state_dict()
        train(module, optimizer, rank, range(1, 6))
        state = agent.state_dict()
        found["linked"] = fingerprint(module), str(state["network"])
    agent, module, optimizer = job("measured")
    with agent:
        train(module, optimizer, rank, range(6))
        found["measured"] = fingerprint(module), str(agent.state_dict()["network"])
        agent.switch(collective="shared")
        train(module, optimizer, rank, range(6, 12))
        before = agent.state_dict()["residual"]
        agent.switch(collective="reduce-scatter", compressor="topk+int8")
        after = agent.state_dict()["residual"]
        found["moved"] = max(float((before[name] - after[name]).abs().max()) for name in before)
        try:
            agent.switch(compressor="qsgd")
        except SetupError as error:
            found["refused"] = str(error)
        train(module, optimizer, rank, range(12, 18))
        found["switched"] = fingerprint(module), str(agent.state.cf if agent.state else None)
    agent, module, optimizer = job("resumed")
    with agent:
        agent.load_state_dict(state)
        train(module, optimizer, rank, range(6, 12))
        found["resumed"] = fingerprint(module), str(agent.state_dict()["network"])
    early["network"]["bytes_per_second"] *= 1 + rank
    agent, module, optimizer = job("apart")
    try:
        with agent:
            agent.load_state_dict(early)
            train(module, optimizer, rank, range(1, 6))
    except AgreementError as error:
        found["apart"] = str(error)
    return found


def hashed(rank: int, world: int, folder: str) -> dict[str, Any]:
    """How this process hashes text, and whose child it is."""
    dist.barrier()  # rank 0 keeps the store that the others need while they start
    return {"hash": hash("gradient"), "parent": os.getppid()}


def one_fails(rank: int, world: int, folder: str) -> None:
    """Rank 1 fails; rank 0 would wait for it for long."""
    if rank == 1:
        raise RuntimeError("deliberate")
    time.sleep(60)
