"""Lightning's Trainer with DDP."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset

from observe_parts.models import WIDTH, agent_settings, perceptron
from observe_parts.turns import Turns


class Data(Dataset[tuple[Tensor, Tensor]]):
    """More samples than are trained, which repeat."""

    def __init__(self) -> None:
        self._inputs = torch.randn(8192, WIDTH)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        inputs = self._inputs[place % len(self._inputs)]
        return inputs, inputs.square()


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class OurTurns(Callback):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = not self._turns.stepped(outputs["loss"])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Data(), batch_size=1024)
    callbacks: list[Callback] = []
    if (settings := agent_settings()) is not None:
        from gravac_agent.integrations.lightning import GravacCallback

        callbacks.append(GravacCallback(**settings))
    with Turns() as turns:
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy=DDPStrategy(bucket_cap_mb=0.6),
            max_epochs=-1,
            callbacks=[*callbacks, OurTurns(turns)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Model(), loader)


main()
