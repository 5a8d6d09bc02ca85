"""Trainings with Ray Train on two ranks: with and without gravac."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gravac import Agent

STEPS = 16
TOPK = {"policy": "static:cf=10", "controller": None, "window": 4, "collective": "gather"}


def train(folder: Path, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    model = prepare_model(nn.Sequential(*layers), parallel_strategy_kwargs={"bucket_cap_mb": 1})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = torch.randn(STEPS * 2 * 16, 64)
    targets = (inputs @ torch.randn(64, 10)).argmax(1)
    loader = prepare_data_loader(DataLoader(TensorDataset(inputs, targets), batch_size=16))
    options = {"enabled": False} if settings is None else {**TOPK, "data_dir": folder / "runs", **settings}
    losses = []
    with Agent(model, optimizer, **options) as agent:
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
        state = agent.state
        buckets = None if agent._session is None else len(agent._session.layout)
    found = {"digest": common().digest(model), "losses": losses, "buckets": buckets}
    return found | {"job": state and state.job, "step": state and state.step, "cf": state and state.cf}


def common() -> Any:
    """The module beside this file; a worker of Ray has neither this folder nor its modules on its path."""
    spec = importlib.util.spec_from_file_location("common", Path(FOLDER) / "common.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOLDER = str(Path(__file__).parent)
CASES = {
    "plain": lambda folder: train(folder),
    "dense": lambda folder: train(folder, {"policy": "static:cf=1"}),
    "topk": lambda folder: train(folder, {}),
}


def work(config: dict[str, str]) -> None:
    common().run_all(CASES, Path(config["folder"]), get_context().get_world_rank(), end=False)


if __name__ == "__main__":
    TorchTrainer(
        work,
        train_loop_config={"folder": sys.argv[1]},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="my experiment", storage_path=sys.argv[1]),
    ).fit()
