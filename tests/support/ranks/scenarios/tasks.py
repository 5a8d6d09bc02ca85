"""A task as real ranks train it, with the agent, to compare simulated ranks with."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent

SIMULATED_TASK = "digits:width=8"
SEED = 1


def sums_of(model: nn.Module) -> list[float]:
    """Return two figures of each parameter that change with any of its elements."""
    found = []
    for parameter in model.parameters():
        flat = parameter.detach().double().flatten()
        found += [float(flat.norm()), float(flat.abs() @ flat.new_tensor(range(1, flat.numel() + 1)))]
    return found


def task_trained(rank: int, world: int, folder: str, steps: int) -> dict[str, Any]:
    """Train the task, sending 10 % by Top-k after two dense steps.

    Returns what each step sent, the buckets, bytes and parameters.
    """
    from gravac_lab.tasks import loss_of, make  # only here: see tests/support/lab.py

    recipe = make(SIMULATED_TASK)
    model = recipe.build_model(SEED)
    module = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = recipe.optimizer(module.parameters())
    (peak,) = {group["lr"] for group in optimizer.param_groups}
    batches = recipe.batches(rank, world, SEED)
    sent = []
    with Agent(
        module,
        optimizer,
        data_dir=folder,
        controller=None,
        compressor="topk+bf16",
        # With a gate the first step is dense. DDP has other buckets in that step than in all later ones.
        policy="static:cf=10,epsilon=0.01",
        seed=SEED,
    ) as agent:
        assert agent._parts is not None
        loop = agent._parts.loop
        for step in range(steps):
            state = agent.state
            assert state is not None
            sent.append((state.codec, state.cf))
            inputs, classes = next(batches)
            for group in optimizer.param_groups:
                group["lr"] = peak * recipe.schedule(step, steps)
            optimizer.zero_grad()
            loss_of(module(inputs), classes).backward()
            assert recipe.clip_norm is not None
            agent.clip_grad_norm_(recipe.clip_norm)
            optimizer.step()
            layout = [list(bucket.names) for bucket in agent._session.layout]
        payload = loop.payload_bytes
    return {"sent": sent, "layout": layout, "payload_bytes": payload, "parameters": sums_of(model)}
