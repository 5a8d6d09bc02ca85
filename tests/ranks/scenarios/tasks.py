"""A task as real ranks train it, with the agent, to compare simulated ranks with."""

from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent

SIMULATED_TASK = "digits:width=8"
TEXT_TASK = "lm:width=16,length=16,text=python,heldout=16"
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
        payload = loop.totals.payload_bytes
    return {"sent": sent, "layout": layout, "payload_bytes": payload, "parameters": sums_of(model)}


def trained_by(rank: int, world: int, folder: str, methods: list[str], steps: list[int]) -> dict[str, Any]:
    """Train a small LSTM by methods of the training benchmark.

    Returns for each the parameters and the bytes sent after each of the numbers of steps.
    """
    from gravac_lab.programs.methods import apply
    from gravac_lab.programs.train import Trainer
    from gravac_lab.tasks import make

    found: dict[str, Any] = {}
    for method in methods:
        task = make(TEXT_TASK).part_of(rank, world, SEED)
        points = found[method] = []
        with apply(method, task, "none", Path(folder), 20) as applied:
            trainer = Trainer(task=task, applied=applied, interface=None, heldout_batches=1)
            for after in steps:
                trainer.train(after - trainer.step)
                weights = nn.utils.parameters_to_vector(task.model.parameters()).tolist()
                points.append((weights, applied.payload_bytes(after)))
    return found
