"""A training with Ray Train and gravac: see docs/frameworks/ray.md."""

import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gravac import Agent


def train() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4096, 64)
    targets = (inputs @ torch.randn(64, 10)).argmax(1)
    loader = prepare_data_loader(DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True))
    model = prepare_model(
        nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with Agent(model, optimizer):
        for _ in range(3):
            for x, y in loader:
                loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()


def main() -> None:
    trainer = TorchTrainer(
        train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="classifier")
    )
    trainer.fit()


if __name__ == "__main__":
    main()
