"""The same job with the host's threads and with streams: real DDP modules, whose streams run at once."""

import math
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gravac_agent import Agent, AgentError
from gravac_agent.exchange.plan import Directive
from gravac_agent.streams.executor import StreamExecutor
from tests.ranks.scenarios.model import batch, fingerprint, flat, overflow, wrapped
from tests.support.streams.at_once import Hanging, streams_for_agents

CFS = (1.0, 10.0, 40.0, 3.0, 1.0, 160.0)


def on_streams(
    rank: int,
    world: int,
    folder: str,
    compressor: str,
    steps: int = 40,
    every: int = 4,
    clip: float | None = None,
    scaled: bool = False,
    whole: bool = False,
    buffer: bool = False,
    unused: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train with threads, then with streams; CFs are switched, and one step has a gradient that is not finite.

    Args:
        rank: As in every scenario, and so the next two.
        world: See there.
        folder: See there.
        compressor: The codec.
        steps: How many.
        every: Steps of a window, and of a CF.
        clip: Largest norm that the agent leaves the gradients.
        scaled: Whether to train in float16 with a GradScaler, whose scale grows until gradients overflow.
        whole: Whether streams send whole messages.
        buffer: Whether DDP broadcasts a buffer before forward.
        unused: Whether DDP sums which parameters are unused, after backward.
        options: More settings of the agent.
    """
    results: dict[str, Any] = {}
    for kind in ("threads", "streams"):
        module = wrapped(buckets=8, buffer=buffer, find_unused_parameters=unused)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3, enabled=scaled)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, steps // 3, 0.5)
        with streams_for_agents(whole=whole) if kind == "streams" else nullcontext():
            with Agent(
                module,
                optimizer,
                data_dir=folder,
                controller=None,
                policy="static:cf=10",
                compressor=compressor,
                window=every,
                scaler=scaler if scaled else None,
                **options,
            ) as agent:
                parts = agent._parts
                assert parts is not None
                for step in range(steps):
                    if step % every == 0 and parts.reporter is not None:
                        cf = CFS[(step // every) % len(CFS)]
                        parts.reporter.directive = Directive(step // every, "hold", cf, cf, 0.0)
                    if step == steps // 2:
                        overflow(module, rank)
                    with torch.autocast("cpu", torch.float16, enabled=scaled):
                        loss = torch.nn.functional.cross_entropy(*_evaluate(module, rank, step))
                    scaler.scale(loss).backward()
                    if clip is not None:
                        scaler.unscale_(optimizer)
                        agent.clip_grad_norm_(clip)
                    if scaled or _finite(module):
                        scaler.step(optimizer)  # not where a gradient is not finite
                        scaler.update()
                    scheduler.step()
                    optimizer.zero_grad()
                    agent.log(loss=loss)
                state = flat(agent)
                found = agent.state
                assert found is not None
                report = parts.loop.reports.last
            executor = parts.executor
        results[kind] = {
            "streams": isinstance(executor, StreamExecutor),
            "parameters": fingerprint(module),
            "norm": math.sqrt(
                sum(float(param.detach().double().square().sum()) for param in module.parameters())
            ),
            "residual": sum(float(one.double().square().sum()) for one in state["residual"].values()),
            "step": found.step,
            "loss_scale": scaler.get_scale(),
            "windows": found.window,
            "payload_bytes": found.payload_bytes,
            "nonfinite": found.nonfinite_steps,
            "samples": None if report is None else report.samples,
            "leftover": _after(module, rank),
        }
    return results


def lost_on_streams(
    rank: int, world: int, folder: str, timeout: float, reads: bool = False
) -> dict[str, Any]:
    """Train until the last rank stops to take part, and say how the first one ends.

    Args:
        rank: As in every scenario, and so the next two.
        world: See there.
        folder: See there.
        timeout: Of the trainer's process group, in seconds.
        reads: Whether the trainer waits for the device itself after each step, as ``loss.item()`` does.
    """
    group = dist.new_group(timeout=timedelta(seconds=timeout))
    module = wrapped(buckets=4, process_group=group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    done, error, lasted = Path(folder, "done"), "", 0.0
    with streams_for_agents(Hanging):
        agent = Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=4")
        agent.start()
        try:
            for step in range(8):
                if step == 5 and rank == world - 1:
                    while not done.exists():  # hangs, as far as the others can see
                        time.sleep(0.05)
                    return {}
                began = time.monotonic()
                torch.nn.functional.cross_entropy(*_evaluate(module, rank, step)).backward()
                optimizer.step()
                optimizer.zero_grad()
                executor = agent._parts.executor  # type: ignore[union-attr]
                while reads and executor.hangs():  # type: ignore[union-attr]
                    time.sleep(0.01)
                    if _noted(folder):
                        lasted = time.monotonic() - began
                        raise AgentError("noted")
        except AgentError as raised:
            error = f"{type(raised).__name__}: {raised}"
            agent.__exit__(type(raised), raised, None)
            lasted = lasted or time.monotonic() - began
    done.touch()
    return {"error": error, "lasted": lasted}


def _noted(folder: str) -> bool:
    return any(b'"failed"' in trace.read_bytes() for trace in Path(folder).rglob("journal.jsonl"))


def _finite(module: torch.nn.Module) -> bool:
    return all(
        bool(torch.isfinite(param.grad).all()) for param in module.parameters() if param.grad is not None
    )


def _evaluate(module: torch.nn.Module, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(rank, step)
    return module(x), y


def _after(module: torch.nn.Module, rank: int) -> float:
    """A gradient after the agent closed, which carries the residual."""
    torch.nn.functional.cross_entropy(*_evaluate(module, rank, 1000)).backward()
    return sum(float(param.grad.double().sum()) for param in module.parameters() if param.grad is not None)
