"""Gradients are neither lost nor doubled, and dense is plain DDP."""

import contextlib
import logging
import math
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gravac_agent import Agent
from gravac_agent.exchange.plan import Directive
from tests.ranks.scenarios.aged import breaking
from tests.ranks.scenarios.model import batch, fingerprint, net, train, wrapped
from tests.ranks.scenarios.undo import Undone


def same_as_ddp(
    rank: int, world: int, folder: str, how: str, steps: int = 50, nan_at: int | None = None, **options: Any
) -> dict[str, Any]:
    """Train plainly and with the agent at CF 1 or not enabled; parameters must be the same bits.

    ``nan_at``: one rank has a NaN in one gradient of this step's first bucket.
    """
    results = []

    def poisoned(gradient: torch.Tensor) -> torch.Tensor | None:
        return None if rank else torch.full_like(gradient, math.nan)

    for with_agent in (False, True):
        module = wrapped(**options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

        def run(module: Any = module, optimizer: torch.optim.Optimizer = optimizer) -> None:
            train(module, optimizer, rank, range(steps if nan_at is None else nan_at))
            if nan_at is not None:
                hook = next(module.parameters()).register_hook(poisoned)
                train(module, optimizer, rank, range(nan_at, nan_at + 1))
                hook.remove()
                train(module, optimizer, rank, range(nan_at + 1, steps))

        if with_agent:
            chosen: dict[str, Any] = (
                {"enabled": False} if how == "disabled" else {"policy": how, "controller": None}
            )
            with Agent(module, optimizer, data_dir=folder, **chosen):
                run()
        else:
            run()
        results.append(fingerprint(module))
    return {"plain": results[0], "agent": results[1]}


def observed(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Observe a job on a slow link and on none; what rank 0 logs at the end, and the last window."""
    found: dict[str, Any] = {}
    for link in ("20mbit", "none"):
        module = wrapped(buckets=6)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        lines = _Lines()
        log = logging.getLogger("gravac.agent")
        log.addHandler(lines)
        level = log.level
        log.setLevel(logging.INFO)
        try:
            settings = {"policy": "observe", "controller": None, "link": link, "window": 10, "job": link}
            with Agent(module, optimizer, data_dir=folder, **settings) as agent:  # type: ignore[arg-type]
                train(module, optimizer, rank, range(40))
                figures = agent.figures()
        finally:
            log.removeHandler(lines)
            log.setLevel(level)
        found[link] = {"lines": lines.lines, "figures": figures}
    return found


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


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
        submit = parts.executor.submit

        def counting(bucket: Any, buffer: Any, last: bool) -> Any:
            nonlocal buckets
            buckets = max(buckets, bucket.number + 1)
            if delays.random() < 0.05:
                time.sleep(delays.random() * 0.004)
            return submit(bucket, buffer, last)

        parts.executor.submit = counting  # type: ignore[method-assign]

        def switch(step: int) -> None:
            if step % every == 0 and parts.reporter is not None:
                cf = cfs[(step // every) % len(cfs)]
                parts.reporter.directive = Directive(step // every, "explore", min(cf, 10.0), cf, 0.0)
            if delays.random() < 0.1:
                time.sleep(delays.random() * 0.01)
            sent.add(agent.state.cf if agent.state else None)

        loss = train(module, optimizer, rank, range(steps), switch)
        dense, payload = parts.loop.totals.dense_bytes, parts.loop.totals.payload_bytes
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
    """One rank gets a non-finite gradient at one step; the residual before and after it is compared.

    A residual that has one buffer is undone by the gradient, within the bound of ``Undone``.
    """
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
        for step in range(at + 3):
            bad["now"] = step == at and rank == world - 1
            before = None
            if step == at and agent._parts:
                before = Undone(agent._parts.memory), fingerprint(module)
            x, y = batch(rank, step)
            loss = nn.functional.cross_entropy(module(x), y)
            loss.backward()
            seen_bad = not all(
                bool(torch.isfinite(p.grad).all()) for p in module.parameters() if p.grad is not None
            )
            optimizer.step()
            optimizer.zero_grad()
            if before is not None and agent._parts:
                spoiled = {
                    "every_rank_saw_it": seen_bad,
                    "parameters_kept": before[1] == fingerprint(module),
                    "residual_kept": before[0].within_rounding(),
                    "residual_elements": sum(t.numel() for t in agent._parts.memory.state_dict().values()),
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


def conserved(
    rank: int,
    world: int,
    folder: str,
    compressor: str,
    steps: int = 40,
    clip: float | None = None,
    collective: str = "auto",
    bad_steps: tuple[int, ...] = (),
    failing_step: int = -1,
) -> dict[str, Any]:
    """P10: after each step, what was applied plus the mean of the residuals is the sum of the mean gradients.

    ``clip``: norm to clip the exchanged gradient to, as scripts do between backward and step. What that cuts off is
    missing from the sum, to the last bit of it. In ``bad_steps`` the last rank's gradient is infinite.
    In ``failing_step`` its codec raises.
    """
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    names = [name for name, _ in module.module.named_parameters()]
    start = [p.detach().double().clone() for p in module.parameters()]
    plain = net()
    expected = [torch.zeros_like(p, dtype=torch.float64) for p in plain.parameters()]
    cut = [torch.zeros_like(total) for total in expected]
    bad = {"now": False}
    next(module.module.parameters()).register_hook(
        lambda grad: grad.index_fill(0, torch.tensor([0]), float("inf")) if bad["now"] else grad
    )

    def cut_off(_: int) -> None:
        if clip is None:
            return
        before = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        for total, was, p in zip(cut, before, module.parameters(), strict=True):
            if p.grad is not None:
                total += was.double() - p.grad.double()

    with Agent(
        module,
        optimizer,
        data_dir=folder,
        controller=None,
        policy="static:cf=20",
        compressor=compressor,
        collective=collective,
        window=7,
    ) as agent:
        worst = share = lost = 0.0
        for step in range(steps):
            plain.load_state_dict(module.module.state_dict())
            for one in range(world):  # the dense mean gradient at the same parameters
                plain.zero_grad()
                x, y = batch(one, step)
                nn.functional.cross_entropy(plain(x), y).backward()
                for total, p in zip(expected, plain.parameters(), strict=True):
                    assert p.grad is not None
                    total += 0.0 if step in bad_steps else p.grad.double() / world
            bad["now"] = step in bad_steps and rank == world - 1
            fails = step == failing_step and rank == world - 1
            with breaking(agent) if fails else contextlib.nullcontext():
                train(module, optimizer, rank, range(step, step + 1), cut_off)
            bad["now"] = False
            assert agent._parts is not None
            residuals = agent._parts.memory.state_dict()
            for name, p, begun, total, gone in zip(
                names, module.parameters(), start, expected, cut, strict=True
            ):
                # A step without a residual, as the first one, holds none.
                residual = residuals.get(name, torch.zeros(p.numel())).double().view_as(p)
                dist.all_reduce(residual)
                applied = begun - p.detach().double()
                worst = max(worst, float((applied + residual / world + gone - total).abs().max()))
                lost = max(lost, float(gone.abs().max()))
                share = max(share, float((residual / world).abs().max()))
    # After the agent closed, the first plain backward sends the residual.
    before = [p.detach().double().clone() for p in module.parameters()]
    optimizer.zero_grad()
    x, _ = batch(rank, steps)
    (module(x).sum() * 0.0).backward()
    optimizer.step()
    flushed = 0.0
    for name, p, begun in zip(names, module.parameters(), before, strict=True):
        residual = residuals[name].double().view_as(p)
        dist.all_reduce(residual)
        flushed = max(flushed, float((begun - p.detach().double() - residual / world).abs().max()))
    return {"worst": worst, "largest_residual": share, "flushed": flushed, "lost": lost}


def true_gains(
    rank: int, world: int, folder: str, steps: int = 16, cf: float = 20.0, raw_gain: bool = False
) -> dict[str, Any]:
    """The gain as the agent smooths it beside the same computed here: of p = gradient + residual, over all ranks.

    ``raw_gain``: of the gradient alone.

    Top-k sends elements whole, so what it kept of p is ‖p‖² minus the new residual's energy. The first steps are dense,
    as gains decide.
    """
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    names = [name for name, _ in module.module.named_parameters()]
    plain, found = net(), []
    truth: tuple[float, float] | None = None
    policy = f"static:cf={cf},epsilon=0.001"
    if raw_gain:
        policy = f"gravac:variant=paper,denominator=gradient,epsilon=0.001,cf_min={cf / 2},cf_max={cf}"
    options: dict[str, Any] = {"policy": policy, "collective": "gather"}
    with Agent(module, optimizer, data_dir=folder, controller=None, window=steps, **options) as agent:
        assert agent._parts is not None
        memory, tracker = agent._parts.memory, agent._parts.loop.schedule.tracker
        for step in range(steps):
            plain.load_state_dict(module.module.state_dict())
            plain.zero_grad()
            x, y = batch(rank, step)
            nn.functional.cross_entropy(plain(x), y).backward()
            gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
            before = memory.state_dict()
            compressed = agent._parts.loop.plan.cf > 1.0
            train(module, optimizer, rank, range(step, step + 1))
            after = memory.state_dict()
            offered = {n: gradients[n].flatten() + before[n] if n in before else gradients[n] for n in names}
            sums = torch.tensor(
                [
                    sum(float(offered[n].double().square().sum()) for n in names),
                    sum(float(after[n].double().square().sum()) for n in names if n in after),
                    sum(float(gradients[n].double().square().sum()) for n in names),
                ],
                dtype=torch.float64,
            )
            dist.all_reduce(sums)
            whole, left, raw = sums.tolist()
            if not compressed:  # nothing is in the memory yet: gradient and p are the same
                truth = tracker.averages.get((0, cf))
                continue
            assert truth is not None
            kept, average = truth
            of = raw if raw_gain else whole
            truth = kept + 0.1 * (whole - left - kept), average + 0.1 * (of - average)
            found.append((tracker.gain(cf), truth[0] / truth[1], whole / raw))
        buckets = len(agent._session.layout)
    return {"found": found, "buckets": buckets}


def many_steps(
    rank: int, world: int, folder: str, compressor: str, buckets: int, steps: int
) -> dict[str, Any]:
    """One codec for many steps, at a CF that it takes as its own setting says."""
    module = wrapped(buckets=buckets, layers=max(3, buckets))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    options: dict[str, Any] = {"compressor": compressor, "policy": "static:cf=2", "window": steps // 20}
    with Agent(module, optimizer, data_dir=folder, controller=None, **options) as agent:
        loss = train(module, optimizer, rank, range(steps))
        assert agent._parts is not None
        loop, seen = agent._parts.loop, len(agent._session.layout)
    return {
        "parameters": fingerprint(module),
        "loss": loss,
        "buckets": seen,
        "steps": loop.step,
        "saved": loop.totals.dense_bytes / loop.totals.payload_bytes,
    }


def hashed(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Return how this process hashes text, and its parent."""
    return {"hash": hash("gradient"), "parent": os.getppid()}
