"""Trainings with Lightning on two ranks: with and without gravac, resumed, failing."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import gravac as package
from gravac_agent.integrations.lightning import GravacCallback

sys.path.insert(0, str(Path(__file__).parent))
from common import digest, run_all

STEPS = 16
RANK = int(os.environ["RANK"])
TOPK = {"policy": "static:cf=10", "controller": None, "window": 4, "collective": "gather"}


class Model(LightningModule):
    def __init__(self, nan_at: int | None = None, raise_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
        self.layers = nn.Sequential(*layers)
        self.nan_at, self.raise_at = nan_at, raise_at

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == self.raise_at:
            raise ValueError("on purpose")
        loss = cross_entropy(self.layers(batch[0]), batch[1])
        return loss * float("nan") if batch_idx == self.nan_at and RANK == 1 else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Probe(Callback):
    """Keeps the agent's last state, and the losses of the steps."""

    def __init__(self, callback: GravacCallback | None) -> None:
        self.callback, self.state, self.losses = callback, None, []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))
        if self.callback is not None and self.callback.agent is not None:
            self.state = self.callback.agent.state


def train(
    folder: Path,
    callback: GravacCallback | None = None,
    epochs: int = 1,
    resume: str | None = None,
    model: Model | None = None,
    **more: Any,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * 2 * 16, 64, generator=generator)
    targets = (inputs @ torch.randn(64, 10, generator=generator)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=16)
    model = Model() if model is None else model
    probe = Probe(callback)
    saving = ModelCheckpoint(dirpath=folder / "saved", filename="{epoch}", save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=epochs,
        callbacks=[saving, probe] if callback is None else [callback, saving, probe],
        logger=CSVLogger(folder, name="log", version="1"),
        log_every_n_steps=4,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
        **{"gradient_clip_val": 0.5, "strategy": DDPStrategy(bucket_cap_mb=1), **more},
    )
    trainer.fit(model, loader, ckpt_path=resume)
    state = probe.state
    return {
        "digest": digest(model),
        "steps": trainer.global_step,
        "losses": probe.losses,
        "finite": all(bool(param.isfinite().all()) for param in model.parameters()),
        "clip": trainer.gradient_clip_val,
        "own_methods": sorted({"save_checkpoint", "remove_checkpoint"} & set(vars(trainer.strategy))),
        "state": None
        if state is None
        else {"step": state.step, "cf": state.cf, "nonfinite": state.nonfinite_steps},
        "agent_left": callback is not None and callback.agent is not None,
    }


def gravac(folder: Path, **settings: Any) -> GravacCallback:
    return GravacCallback(**{**TOPK, "data_dir": folder / "runs", "job": "job", **settings})


def half() -> MixedPrecision:
    """float16 with a scale that overflows in the first steps. On a CPU, ``precision="16-mixed"`` means bfloat16."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**22))


def resumed(folder: Path) -> dict[str, Any]:
    train(folder, gravac(folder))
    found = train(folder, gravac(folder), epochs=2, resume=str(folder / "saved/epoch=0.ckpt"))
    files = sorted(path.name for path in (folder / "saved/epoch=0.ckpt.gravac").iterdir())
    saved = torch.load(folder / f"saved/epoch=0.ckpt.gravac/gravac-rank{RANK}-of-2.pt", weights_only=True)
    return {**found, "files": files, "buckets": len(dict(saved[f"rank{RANK}"]["facts"])["buckets"])}


def resumed_without(folder: Path) -> dict[str, Any]:
    """The ranks' files are gone: a warning, and training goes on."""
    train(folder, gravac(folder))
    (folder / f"saved/epoch=0.ckpt.gravac/gravac-rank{RANK}-of-2.pt").unlink()
    return train(folder, gravac(folder), epochs=2, resume=str(folder / "saved/epoch=0.ckpt"))


def failing(folder: Path) -> dict[str, Any]:
    callback, raised = gravac(folder), ""
    try:
        train(folder, callback, model=Model(raise_at=7))
    except ValueError as error:
        raised = str(error)
    left = callback.agent is not None
    again = train(folder, callback)
    return {"raised": raised, "left": left, "again": again["steps"]}


class OnCpu(DDPStrategy):
    """Registers the hook as Lightning does on a GPU; on a CPU it leaves it out."""

    def _register_ddp_hooks(self) -> None:
        assert self.model is not None
        _register_ddp_comm_hook(self.model, self._ddp_comm_state, self._ddp_comm_hook)


def line(folder: Path) -> dict[str, Any]:
    state, hook = package.hook("topk+bf16@10", window=4, controller=None, data_dir=folder / "runs")
    strategy = OnCpu(bucket_cap_mb=1, ddp_comm_state=state, ddp_comm_hook=hook)
    found = train(folder, strategy=strategy, gradient_clip_val=None)
    return found | of_line(state)


def of_line(state: Any) -> dict[str, Any]:
    """Return what the agent of a hook line did, and close it."""
    now = state.agent.state
    state.agent.close()
    return {"agent": {"step": now.step, "cf": now.cf}}


def fabric(folder: Path) -> dict[str, Any]:
    """With validation on rank 0 alone between steps."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    whole = Model()
    model, optimizer = fabric.setup(whole.layers, whole.configure_optimizers())
    state, hook = package.hook("topk+bf16@10", window=4, controller=None, data_dir=folder / "runs")
    model._forward_module.register_comm_hook(state, hook)
    generator = torch.Generator().manual_seed(RANK)
    for _ in range(STEPS):
        if RANK == 0:
            with torch.no_grad():
                model(torch.ones(1, 64))
        loss = cross_entropy(model(torch.randn(16, 64, generator=generator)), torch.arange(16) % 10)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"digest": digest(whole), **of_line(state)}


CASES = {
    "plain": lambda folder: train(folder),
    "off": lambda folder: train(folder, gravac(folder, enabled=False)),
    "dense": lambda folder: train(folder, gravac(folder, policy="static:cf=1")),
    "topk": lambda folder: train(folder, gravac(folder)),
    "straight": lambda folder: train(folder, gravac(folder), epochs=2),
    "resumed": resumed,
    "resumed_without": resumed_without,
    "nonfinite": lambda folder: train(folder, gravac(folder), model=Model(nan_at=5)),
    "accumulated": lambda folder: train(folder, gravac(folder), accumulate_grad_batches=2),
    "bf16": lambda folder: train(folder, gravac(folder), precision="bf16-mixed"),
    "fp16": lambda folder: train(folder, gravac(folder), plugins=[half()]),
    "failing": failing,
    "line": line,
    "fabric": fabric,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the framework's own
    run_all(CASES, Path(sys.argv[1]), RANK)
