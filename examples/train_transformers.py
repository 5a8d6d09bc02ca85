"""A training with Hugging Face's Trainer and gravac: see docs/frameworks/transformers.md."""

import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gravac_agent.integrations.transformers import GravacCallback


def main() -> None:
    text = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("a*.py")))
    pieces = torch.tensor(list(text[: 2048 * 64])).view(-1, 64)
    data = [{"input_ids": piece, "labels": piece} for piece in pieces]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=192, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        output_dir="gpt2-bytes",
        use_cpu=True,
        max_steps=100,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=10,
        save_steps=50,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.add_callback(GravacCallback())
    trainer.train()


if __name__ == "__main__":
    main()
