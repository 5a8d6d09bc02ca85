"""Several agents in one process."""

import importlib.util
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac.memories import ResidualMemory
from gravac_agent import Agent
from gravac_agent.reporting import controller_link
from tests.ranks.scenarios.model import batch, fingerprint, net

EXAMPLE = Path(__file__).parents[3] / "examples/train_gan.py"


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gan", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gan(rank: int, world: int, folder: str, steps: int) -> dict[str, Any]:
    """examples/train_gan.py: dense agents against plain DDP, then compressed with a controller for each agent."""
    example, found = _example(), dict[str, Any]()
    for name, settings in (("plain", {"enabled": False}), ("dense", {"controller": None, "policy": "dense"})):
        models = example.models()
        with ExitStack() as stack:
            agents = _agents(stack, models, data_dir=f"{folder}/{name}", **settings)
            example.train(*models, agents, steps=20)
        found[name] = [fingerprint(model) for model in models[:2]]
    models = example.models()
    data = example.digits()
    found["before"] = example.distance(example.sample(models[0]), data)
    with ExitStack() as stack:
        # On a busy machine, answers are late.
        stack.enter_context(mock.patch.object(controller_link, "FALLBACK_WINDOWS", 100))
        options = {"policy": "static:cf=7", "compressor": "nearest:levels=15", "window": 10}
        agents = _agents(stack, models, data_dir=folder, job=["gan-g", "gan-d"], **options)
        ready = [agent.wait_ready(60) for agent in agents]
        dist.barrier()
        found["pages"] = [_page(agent) for agent in agents] if rank == 0 else []
        example.train(*models, agents, steps=steps)
        states = [agent.state for agent in agents]
        found["buckets"] = [len(agent._session.layout) for agent in agents if agent._session]
        found["traces"] = [str(agent.trace_path) for agent in agents]
    return found | {
        "after": example.distance(example.sample(models[0]), data),
        "ready": ready,
        "steps": [state.step for state in states if state],
        "saved": [state.dense_bytes / state.payload_bytes for state in states if state],
        "parameters": [fingerprint(model) for model in models[:2]],
    }


def _agents(stack: ExitStack, models: Any, job: Any = (None, None), **settings: Any) -> tuple[Agent, ...]:
    G, D, *optimizers = models
    pairs = zip((G, D), optimizers, job, strict=True)
    return tuple(stack.enter_context(Agent(*pair, job=one, **settings)) for *pair, one in pairs)


def _page(agent: Agent) -> str:
    """Return the name of the job that the controller at the page's address has."""
    with urllib.request.urlopen(f"{agent.url}/v1/jobs", timeout=10) as answer:
        return f"{agent.url} {answer.read().decode()}"


def _model(seed: int) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    module = DistributedDataParallel(net(seed=seed), bucket_cap_mb=0.02)
    return module, torch.optim.SGD(module.parameters(), lr=0.05)


def interleaved(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Two models stepped in turns by two agents, with a bad step of one, against each of them alone."""
    options: dict[str, Any] = {"controller": None, "policy": "static:cf=10", "window": 5}

    def step(
        module: DistributedDataParallel, optimizer: torch.optim.Optimizer, number: int, bad: bool
    ) -> None:
        x, y = batch(rank, number)
        loss = nn.functional.cross_entropy(module(x), y)
        (loss * (float("nan") if bad and rank == 1 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    alone = []
    for seed in (0, 1):
        module, optimizer = _model(seed)
        with Agent(module, optimizer, data_dir=f"{folder}/alone{seed}", **options):
            for number in range(12):
                step(module, optimizer, number, bad=seed == 1 and number == 6)
        alone.append(fingerprint(module))
    pairs = [_model(seed) for seed in (0, 1)]
    with ExitStack() as stack:
        agents = [stack.enter_context(Agent(*pair, data_dir=folder, **options)) for pair in pairs]
        for number in range(12):
            for which in (0, 1) if number % 3 else (1, 0):
                step(*pairs[which], number, bad=which == 1 and number == 6)
        states = [agent.state for agent in agents]
        jobs = [state.job for state in states if state]
        skipped = [state.nonfinite_steps for state in states if state]
    return {
        "alone": alone,
        "together": [fingerprint(one) for one, _ in pairs],
        "jobs": jobs,
        "skipped": skipped,
    }


def one_optimizer(rank: int, world: int, folder: str) -> dict[str, Any]:
    """An actor and a critic that share an optimizer: a bad step of the critic keeps the critic only."""
    (actor, _), (critic, _) = _model(0), _model(1)
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.05)
    options: dict[str, Any] = {"controller": None, "policy": "static:cf=10", "data_dir": folder}
    with Agent(actor, optimizer, **options), Agent(critic, optimizer, **options):
        for number in range(8):
            x, y = batch(rank, number)
            bad = float("nan") if number == 5 and rank == 1 else 1.0
            before = fingerprint(actor), fingerprint(critic)
            loss = nn.functional.cross_entropy(actor(x), y) + bad * nn.functional.cross_entropy(critic(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 5:
                kept = [fingerprint(actor) == before[0], fingerprint(critic) == before[1]]
    return {"kept": kept, "parameters": [fingerprint(actor), fingerprint(critic)]}


def dropped(rank: int, world: int, folder: str, set_to_none: bool, policy: str) -> dict[str, Any]:
    """A GAN whose discriminator is not frozen: the gradients that the generator's step drops leave no residual."""
    (G, g_optimizer), (D, d_optimizer) = (_square(seed) for seed in (0, 1))
    options: dict[str, Any] = {"controller": None, "policy": policy, "data_dir": folder}
    with Agent(G, g_optimizer, job="g", **options), Agent(D, d_optimizer, job="d", **options) as agent:
        assert agent._parts is not None
        memory = agent._parts.memory
        same, grown = [], 0.0
        for number in range(6):
            x, _ = batch(rank, number)
            d_optimizer.zero_grad(set_to_none=set_to_none)
            (D(x).square() - D(G(x).detach()).square()).mean().backward()
            d_optimizer.step()
            assert isinstance(memory, ResidualMemory)
            before = {name: one.clone() for name, one in memory.state_dict().items()}
            D(G(x)).square().mean().backward()  # also fills the gradients of D
            g_optimizer.step()
            g_optimizer.zero_grad(set_to_none=set_to_none)
            d_optimizer.zero_grad(set_to_none=set_to_none)
            D(x)  # here the agent sees that they were dropped
            after = memory.state_dict()
            same.append(
                before.keys() == after.keys() and all(torch.equal(after[k], before[k]) for k in before)
            )
            grown = max(grown, *(float(one.norm()) for one in after.values()), 0.0)
        steps = agent.state.step if agent.state else 0
    return {"same": same, "grown": grown, "steps": steps, "parameters": [fingerprint(G), fingerprint(D)]}


def _square(seed: int) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())]
    module = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02)
    return module, torch.optim.SGD(module.parameters(), lr=0.01)


def other_order(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Rank 1 starts its agents in the other order; the models have the same shapes."""
    options: dict[str, Any] = {"controller": None, "data_dir": folder, "agreement_seconds": 60}
    agents = [Agent(*_model(seed), **options) for seed in (0, 1)]
    error = ""
    try:
        with agents[rank], agents[1 - rank]:
            pass
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {"error": error}


def groups_of_some_ranks(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Three ranks: an agent on all of them, before and after one on two of them, so ranks are in different numbers of
    groups."""
    some = dist.new_group([0, 1])
    options: dict[str, Any] = {"controller": None, "policy": "static:cf=10", "window": 5, "data_dir": folder}
    all_ranks, others = [_model(0), _model(1)], []
    if rank < 2:
        module = DistributedDataParallel(net(seed=2), process_group=some, bucket_cap_mb=0.02)
        others.append((module, torch.optim.SGD(module.parameters(), lr=0.05)))
    pairs = [all_ranks[0], *others, all_ranks[1]]
    with ExitStack() as stack:
        agents = [stack.enter_context(Agent(*pair, **options)) for pair in pairs]
        for number in range(7):
            x, y = batch(rank, number)
            for module, optimizer in pairs:
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        jobs = [agent.state.job for agent in agents if agent.state]
    dist.barrier()
    return {"jobs": jobs, "parameters": [fingerprint(pairs[0][0]), fingerprint(pairs[-1][0])]}
