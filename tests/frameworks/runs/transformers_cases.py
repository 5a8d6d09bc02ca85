"""Trainings with Hugging Face's Trainer on two ranks: with and without gravac, resumed, failing."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments

from gravac_agent.integrations.transformers import GravacCallback

sys.path.insert(0, str(Path(__file__).parent))
from common import digest, run_all

STEPS = 16
RANK = int(os.environ["RANK"])
TOPK = {"policy": "static:cf=10", "controller": None, "window": 4, "collective": "gather"}


class Model(nn.Module):
    """Returns its loss, as models of Transformers do."""

    def __init__(self, nan_at: int | None = None, raise_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
        self.layers = nn.Sequential(*layers)
        self.nan_at, self.raise_at, self.calls = nan_at, raise_at, 0

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls - 1 == self.raise_at:
            raise ValueError("on purpose")
        scores = self.layers(inputs)
        loss = cross_entropy(scores, labels)
        if self.calls - 1 == self.nan_at and RANK == 1:
            loss = loss * float("nan")
        return {"loss": loss, "logits": scores}


class Probe(TrainerCallback):
    """Keeps the agent's last state."""

    def __init__(self, callback: GravacCallback | None) -> None:
        self.callback, self.state = callback, None

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.callback is not None and self.callback.agent is not None:
            self.state = self.callback.agent.state


def train(
    folder: Path,
    callback: GravacCallback | None = None,
    steps: int = STEPS,
    resume: str | None = None,
    model: Model | None = None,
    **more: Any,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * 2 * 16, 64, generator=generator)
    labels = (inputs @ torch.randn(64, 10, generator=generator)).argmax(1)
    data = [{"inputs": one, "labels": label} for one, label in zip(inputs, labels, strict=True)]
    model = Model() if model is None else model
    probe = Probe(callback)
    arguments = TrainingArguments(
        **{
            "output_dir": str(folder / "saved"),
            "use_cpu": True,
            "ddp_bucket_cap_mb": 1,
            "max_steps": steps,
            "per_device_train_batch_size": 16,
            "learning_rate": 0.5,
            "optim": "sgd",
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.5,
            "logging_steps": 4,
            "save_steps": STEPS,
            "report_to": "none",
            "disable_tqdm": True,
            **more,
        }
    )
    callbacks = [probe] if callback is None else [callback, probe]
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    state = probe.state
    return {
        "digest": digest(model),
        "steps": trainer.state.global_step,
        "history": trainer.state.log_history,
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "finite": all(bool(param.isfinite().all()) for param in model.parameters()),
        "clip": arguments.max_grad_norm,
        "state": None
        if state is None
        else {"step": state.step, "cf": state.cf, "nonfinite": state.nonfinite_steps},
        "agent_left": callback is not None and callback.agent is not None,
    }


def gravac(folder: Path, **settings: Any) -> GravacCallback:
    return GravacCallback(**{**TOPK, "data_dir": folder / "runs", "job": "job", **settings})


def resumed(folder: Path) -> dict[str, Any]:
    train(folder, gravac(folder))
    found = train(folder, gravac(folder), steps=2 * STEPS, resume=str(folder / f"saved/checkpoint-{STEPS}"))
    files = sorted(path.name for path in (folder / f"saved/checkpoint-{STEPS}").glob("gravac-*"))
    saved = torch.load(folder / f"saved/checkpoint-{STEPS}/gravac-rank{RANK}-of-2.pt", weights_only=True)
    arguments = torch.load(folder / f"saved/checkpoint-{STEPS}/training_args.bin", weights_only=False)
    return {
        **found,
        "files": files,
        "buckets": len(dict(saved[f"rank{RANK}"]["facts"])["buckets"]),
        "saved_clip": arguments.max_grad_norm,
    }


def resumed_without(folder: Path) -> dict[str, Any]:
    """The ranks' files are gone: a warning, and training goes on."""
    train(folder, gravac(folder))
    (folder / f"saved/checkpoint-{STEPS}/gravac-rank{RANK}-of-2.pt").unlink()
    return train(folder, gravac(folder), steps=2 * STEPS, resume=str(folder / f"saved/checkpoint-{STEPS}"))


def failing(folder: Path) -> dict[str, Any]:
    callback, raised = gravac(folder), ""
    try:
        train(folder, callback, model=Model(raise_at=7))
    except ValueError as error:
        raised = str(error)
    again = train(folder, callback)
    return {"raised": raised, "again": again["steps"], "left": callback.agent is not None}


CASES = {
    "plain": lambda folder: train(folder),
    "off": lambda folder: train(folder, gravac(folder, enabled=False)),
    "dense": lambda folder: train(folder, gravac(folder, policy="static:cf=1")),
    "topk": lambda folder: train(folder, gravac(folder)),
    "straight": lambda folder: train(folder, gravac(folder), steps=2 * STEPS),
    "resumed": resumed,
    "resumed_without": resumed_without,
    "nonfinite": lambda folder: train(folder, gravac(folder), model=Model(nan_at=5)),
    "accumulated": lambda folder: train(folder, gravac(folder), gradient_accumulation_steps=2),
    "bf16": lambda folder: train(folder, gravac(folder), bf16=True),
    "failing": failing,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the framework's own
    run_all(CASES, Path(sys.argv[1]), RANK)
