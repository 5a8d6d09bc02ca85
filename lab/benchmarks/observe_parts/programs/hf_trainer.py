"""The Trainer of Hugging Face's transformers with DDP, on a small GPT-2."""

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from observe_parts.models import agent_settings
from observe_parts.turns import Turns

LENGTH = 64


class OurTurns(TrainerCallback):
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_training_stop = not self._turns.stepped(Keeping.loss)


class Keeping(Trainer):
    loss = torch.zeros(())

    def training_step(self, *args: Any, **more: Any) -> torch.Tensor:
        Keeping.loss = super().training_step(*args, **more)
        return Keeping.loss


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = torch.randint(256, (4096, LENGTH))
    data = [{"input_ids": piece, "labels": piece} for piece in words]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=192, n_layer=2, n_head=4))
    with Turns() as turns, tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=100_000,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            ddp_bucket_cap_mb=1,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Keeping(model, arguments, train_dataset=data, callbacks=[OurTurns(turns)])
        if (settings := agent_settings()) is not None:
            from gravac_agent.integrations.transformers import GravacCallback

            trainer.add_callback(GravacCallback(**settings))
        trainer.train()


main()
