"""Trainings with Accelerate on two ranks: with and without gravac, accumulated, resumed."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gravac
from gravac import Agent

sys.path.insert(0, str(Path(__file__).parent))
from common import digest, run_all

STEPS = 16
RANK = int(os.environ["RANK"])
TOPK = {"policy": "static:cf=10", "controller": None, "window": 4, "collective": "gather"}


def train(
    folder: Path,
    settings: dict[str, Any] | None = None,
    epochs: int = 1,
    accumulate: int = 1,
    save: Path | None = None,
    resume: Path | None = None,
    line: bool = False,
) -> dict[str, Any]:
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=1)],
    )
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = torch.randn(STEPS * 2 * 16, 64)
    targets = (inputs @ torch.randn(64, 10)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, clip = [], accelerator.clip_grad_norm_
    if line:
        state, hook = gravac.hook("topk+bf16@10", window=4, controller=None, data_dir=folder / "runs")
        model.register_comm_hook(state, hook)
    agent = (
        None
        if settings is None
        else Agent(model, optimizer, **{**TOPK, "data_dir": folder / "runs", **settings})
    )
    if agent is not None:
        agent.start()
    if resume is not None:
        accelerator.load_state(resume)
        if agent is not None:
            agent.load_state_dict(torch.load(resume / f"gravac-rank{RANK}.pt", weights_only=True))
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if agent is None:
                        clip(model.parameters(), 0.5)
                    else:
                        agent.clip_grad_norm_(0.5)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss))
                if agent is not None:
                    agent.log(loss=loss)
    if save is not None:
        accelerator.save_state(save)
        if agent is not None:
            torch.save(agent.state_dict(), save / f"gravac-rank{RANK}.pt")
    found = {"digest": digest(model), "losses": losses}
    if line:
        assert state.agent is not None
        found |= {"step": state.agent.state.step, "cf": state.agent.state.cf}
        state.agent.close()
    if agent is not None:
        state = agent.state
        buckets = None if agent._session is None else len(agent._session.layout)
        found |= {"step": state and state.step, "cf": state and state.cf, "buckets": buckets}
        agent.close()
    accelerator.free_memory()
    return found


def resumed(folder: Path) -> dict[str, Any]:
    saved = folder / "saved"
    train(folder, {}, save=saved)
    return train(folder, {}, resume=saved)


CASES = {
    "plain": lambda folder: train(folder),
    "off": lambda folder: train(folder, {"enabled": False}),
    "dense": lambda folder: train(folder, {"policy": "static:cf=1"}),
    "topk": lambda folder: train(folder, {}),
    "accumulated_plain": lambda folder: train(folder, accumulate=2),
    "accumulated_dense": lambda folder: train(folder, {"policy": "static:cf=1"}, accumulate=2),
    "accumulated": lambda folder: train(folder, {}, accumulate=2),
    "line": lambda folder: train(folder, line=True),
    "line_accumulated": lambda folder: train(folder, accumulate=2, line=True),
    "straight": lambda folder: train(folder, {}, epochs=2),
    "resumed": resumed,
}

if __name__ == "__main__":
    run_all(CASES, Path(sys.argv[1]), RANK)
