"""Jobs that try a plan at a price, on an emulated link that makes what is tried really slow, or not."""

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gravac_agent import Agent
from gravac_agent.devices.base import Timer
from gravac_agent.network.link import Link
from gravac_agent.state.by_rank import unpack
from gravac_agent.streams.executor import StreamExecutor
from tests.ranks.scenarios.model import batch, fingerprint, wrapped
from tests.support.scripted import Play, ScriptedPolicy
from tests.support.streams.at_once import AtOnce, streams_for_agents
from tests.support.streams.device import SimulatedStream


class Slow(AtOnce):
    """A device whose link's stream is busy for as long as an emulated link is. What waits for that stream waits."""

    def __init__(self) -> None:
        super().__init__()
        self._busy: dict[SimulatedStream, float] = {}

    def delay(self, seconds: float) -> None:
        stream = self.current_stream()
        self._busy[stream] = max(time.monotonic(), self._busy.get(stream, 0.0)) + seconds

    def wait_stream(self, waiting: SimulatedStream, awaited: SimulatedStream) -> None:
        time.sleep(max(0.0, self._busy.get(awaited, 0.0) - time.monotonic()))
        super().wait_stream(waiting, awaited)

    def timer(self) -> Any:
        return Clock()


class Clock(Timer):
    """Marks with the real time, as all work is done at once."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self, stream: SimulatedStream) -> int:
        self._marks.append(time.monotonic())
        return len(self._marks) - 1

    def seconds(self, number: int) -> float:
        return self._marks[number] - self._marks[0]

    def restart(self) -> None:
        self._marks.clear()


def make(
    folder: str, job: str, plays: list[list[Any]], bits: float, epsilon: float = 0.0, **options: Any
) -> tuple[Any, Any, Agent]:
    """Return a module with several buckets, its optimizer, and an agent that follows the script."""
    module = wrapped(buckets=6)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    agent = Agent(
        module,
        optimizer,
        job=job,
        data_dir=folder,
        controller=None,
        policy=ScriptedPolicy(*(Play(*play) for play in plays), epsilon=epsilon),
        **{"compressor": "topk", "window": 4, **options},
        link=Link(bits_per_second=bits),
    )
    return module, optimizer, agent


def step_of(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> Tensor:
    x, y = batch(rank, step)
    loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def slow_trial(
    rank: int,
    world: int,
    folder: str,
    plays: list[list[Any]],
    steps: int,
    bits: float = 4e6,
    streams: bool = False,
    stalls: dict[str, list[float]] | None = None,
    fallback: list[int] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Follow a script. Returns what each step sent, and what it took.

    Args:
        rank: As in every scenario, and so the next two.
        world: See there.
        folder: See there.
        plays: The script.
        steps: How many.
        bits: Rate of the link.
        streams: Whether the exchange runs on streams, as on a GPU.
        stalls: Seconds by rank that the trainer spends between this step and the next, as for a checkpoint.
        fallback: Steps in which rank 0 has no controller, from one to the other.
        options: More settings of the agent.
    """
    sent, took = [], []
    with streams_for_agents(Slow) if streams else nullcontext():
        module, optimizer, agent = make(folder, "tried", plays, bits, **options)
        with agent:
            assert agent._parts is not None
            loop, reporter = agent._parts.loop, agent._parts.reporter
            decided = None
            for step in range(steps):
                plan, began = loop.schedule.following if streams and step else loop.plan, time.monotonic()
                if reporter is not None and fallback is not None:
                    if step == fallback[0]:
                        decided = reporter.directive
                        reporter.directive = decided.dense()
                    elif step == fallback[1] and decided is not None:
                        reporter.directive = decided
                step_of(module, optimizer, rank, step)
                sent.append((agent._parts.channels.codecs[plan.codec], plan.cf, plan.directive.phase))
                took.append(time.monotonic() - began)
                for seconds in (stalls or {}).get(f"{rank} {step}", []):
                    time.sleep(seconds)
            found = isinstance(agent._parts.executor, StreamExecutor)
            buckets = len(agent._session.layout)
    return {
        "sent": sent,
        "took": took,
        "parameters": fingerprint(module),
        "streams": found,
        "buckets": buckets,
    }


def trial_goes_on(
    rank: int,
    world: int,
    folder: str,
    at: int,
    plays: list[list[Any]],
    bits: float = 4e6,
    elastic: bool = False,
) -> dict[str, Any]:
    """Save on disk after step ``at`` and go on with another agent. Returns what both sent.

    ``elastic``: the second agent is given states that say that there was a rank more.
    """
    path, first, second = f"{folder}/state", [], []
    module, optimizer, agent = make(folder, "first", plays, bits)
    with agent:
        assert agent._parts is not None
        for step in range(at):
            first.append(agent._parts.loop.plan.cf)
            step_of(module, optimizer, rank, step)
        torch.save({"agent": agent.state_dict(), "model": module.state_dict()}, f"{path}{rank}.pt")
    torch.distributed.barrier()
    states = [torch.load(f"{path}{one}.pt", weights_only=True) for one in range(world)]
    module, optimizer, agent = make(folder, "second", plays, bits)
    with agent:
        assert agent._parts is not None
        module.load_state_dict(states[rank]["model"])
        everyone = [unpack(one["agent"])[0] for one in (*states, states[0])]
        more = [one | {"world_size": world + 1, "rank": number} for number, one in enumerate(everyone)]
        agent.load_state_dict(more if elastic else states[rank]["agent"])
        for step in range(at, at + 6):
            second.append(agent._parts.loop.plan.cf)
            step_of(module, optimizer, rank, step)
    return {"first": first, "second": second, "parameters": fingerprint(module)}
