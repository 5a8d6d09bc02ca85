"""A Lightning training with gravac: see docs/frameworks/lightning.md."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gravac_agent.integrations.lightning import GravacCallback


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = cross_entropy(self.layers(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4096, 64)
    targets = (inputs @ torch.randn(64, 10)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        gradient_clip_val=1.0,
        callbacks=[GravacCallback()],
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
