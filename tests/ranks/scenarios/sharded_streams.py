"""The same FSDP2 job with the host's threads and with streams: real modules, whose streams run at once."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gravac_agent import Agent
from gravac_agent.streams.executor import StreamExecutor
from tests.ranks.scenarios.hybrid import Replicas
from tests.ranks.scenarios.sharded import AGENT, loss_of, same, sharded, shards
from tests.support.streams.at_once import streams_for_agents

BAD = 6


def sharded_on_streams(
    rank: int, world: int, folder: str, how: str, compressor: str = "topk+bf16", clip: float = 0.0
) -> dict[str, Any]:
    """Train with threads, then with streams, through a step that is not finite on the last rank.

    Args:
        rank: As in every scenario, and so the next two.
        world: See there.
        folder: See there.
        how: ``fsdp``, or as in ``Replicas``.
        compressor: The codec.
        clip: Largest norm that the agent leaves the gradients; 0 clips nothing.
    """
    found: dict[str, Any] = {}
    for kind in ("threads", "streams"):
        replicas = None if how == "fsdp" else Replicas(world, how)
        model: Any = sharded(world) if replicas is None else replicas.model(False)
        own = {} if replicas is None else replicas.options
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        lost, options = [], {"policy": "static:cf=10", "compressor": compressor, **AGENT, **own}
        with streams_for_agents() if kind == "streams" else nullcontext():
            with Agent(model, optimizer, data_dir=folder, job=kind, window=4, **options) as agent:
                parts = agent._parts
                assert parts is not None
                for step in range(14):
                    loss = loss_of(model, rank, step)
                    (loss * (math.nan if step == BAD and rank == world - 1 else 1.0)).backward()
                    if clip:
                        agent.clip_grad_norm_(clip)
                    lost.append(not all(map(_is_finite, shards(model, grad=True).values())))
                    if not lost[-1]:
                        optimizer.step()
                    optimizer.zero_grad()
                    optimizer.param_groups[0]["lr"] = 0.05 * 0.9 ** (step // 5)
                    agent.log(loss=loss)
                agent.state_dict()  # takes in the last step
                state, report = agent.state, parts.loop.reports.last
                assert state is not None
                residual = {name: one.clone() for name, one in parts.memory.state_dict().items()}
            executor = parts.executor
        closed = shards(model)
        loss_of(model, rank, 20).backward()  # brings the residual
        found[kind] = {
            "streams": isinstance(executor, StreamExecutor),
            "lost": lost,
            "parameters": closed,
            "residual": residual,
            "leftover": shards(model, grad=True),
            "payload_bytes": state.payload_bytes,
            "nonfinite": state.nonfinite_steps,
            "windows": state.window,
            "samples": None if report is None else report.samples,
        }
    threads, streams = found["threads"], found["streams"]
    tensors = ("parameters", "residual", "leftover")
    return {
        "threads": {name: value for name, value in threads.items() if name not in tensors},
        "streams": {name: value for name, value in streams.items() if name not in tensors},
        "same": [same(threads[name], streams[name]) for name in tensors],
        "off": max(_off(threads[name], streams[name]) for name in tensors),
        "waits": sum(float(one.abs().sum()) for one in residual.values()),
    }


def _is_finite(one: Tensor) -> bool:
    return bool(torch.isfinite(one).all())


def _off(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel())
