"""A training with Accelerate and gravac: see docs/frameworks/accelerate.md."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gravac import Agent


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    inputs = torch.randn(4096, 64)
    targets = (inputs @ torch.randn(64, 10)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with Agent(model, optimizer) as agent:
        for _ in range(3):
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    agent.log(loss=loss)
    accelerator.end_training()


if __name__ == "__main__":
    main()
