"""One rank of ``examples/elastic.py`` with an audit: what came in is what was sent, plus the residual.

It adds up the mean over ranks of the raw gradients, and the gradients that the optimizer got, in buffers of the model.
So the example's checkpoints have these sums, and a gradient that is lost at a restart is missed for good.
"""

import importlib.util
import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gravac_agent import Agent
from gravac_agent.state.by_rank import unpack
from tools.chaos.rank import fingerprint

NOTES = "ELASTIC_NOTES"
"""Environment variable: the folder that ranks write their notes to."""
EXAMPLE = Path(__file__).parents[2] / "examples/elastic.py"


class Audit:
    """Adds up what comes in and what is sent, and compares the difference with the residual."""

    def __init__(self, notes: Path) -> None:
        self._file = (notes / f"{os.getpid()}.jsonl").open("w", buffering=1)
        self._raw: dict[str, Tensor] = {}
        self._model: nn.Module | None = None
        self.step = 0

    def note(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")

    def watch(self, model: nn.Module) -> None:
        """Count the gradients of ``model``, which has not been wrapped yet."""
        self._model = model
        numel = sum(parameter.numel() for parameter in model.parameters())
        for name in ("came_in", "was_sent"):
            model.register_buffer(name, torch.zeros(numel, dtype=torch.float64))
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: self._raw.update({name: gradient.clone()}))
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def check(self, what: str, agent: Agent) -> None:
        """Note how far the sums are from each other. Every rank calls it, between steps."""
        model, world = self._model, dist.get_world_size()
        assert model is not None
        (state,) = unpack(agent.state_dict())
        residual = state["residual"]
        names = dict(model.named_parameters())
        mean = torch.cat(
            [residual.get(name, torch.zeros(one.numel())).double() for name, one in names.items()]
        )
        dist.all_reduce(mean)
        mean /= world
        came_in, was_sent = model.get_buffer("came_in"), model.get_buffer("was_sent")
        largest = float(came_in.abs().max())
        self.note(
            event=what,
            step=self.step,
            off=float((came_in - was_sent - mean).abs().max()) / max(largest, 1e-30),
            residual=float(mean.abs().max()) / max(largest, 1e-30),
            cf=agent.state.cf if agent.state else None,
        )

    def fingerprint(self) -> str:
        """Return a digest of the parameters' bits."""
        assert self._model is not None
        return fingerprint(self._model)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        assert self._model is not None
        if not self._raw:  # torch steps a new optimizer without gradients to fill its state
            return
        parameters = dict(self._model.named_parameters())
        raw = torch.cat([self._raw[name].flatten().double() for name in parameters])
        dist.all_reduce(raw)
        self._model.get_buffer("came_in").add_(raw / dist.get_world_size())
        sent = [
            parameter.grad.flatten().double()
            for parameter in parameters.values()
            if parameter.grad is not None
        ]
        self._model.get_buffer("was_sent").add_(torch.cat(sent))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._raw:
            return
        self._raw.clear()
        self.step += 1
        self.note(event="step", step=self.step)


def audited(example: ModuleType, audit: Audit) -> None:
    """Put the audit into the example's functions."""
    model, save, load = example.Model, example.save, example.load

    def watched() -> nn.Module:
        made: nn.Module = model()
        audit.watch(made)
        return made

    def checked_save(folder: Path, step: int, *rest: Any) -> None:
        audit.check("saving", rest[-1])
        save(folder, step, *rest)
        audit.note(event="saved", step=step)

    def checked_load(folder: Path, *rest: Any) -> int:
        rank, world = dist.get_rank(), dist.get_world_size()
        audit.step = load(folder, *rest)
        audit.note(event="start", time=time.time(), pid=os.getpid(), rank=rank, world=world, step=audit.step)
        audit.check("loaded", rest[-1])
        return audit.step

    vars(example).update(Model=watched, save=checked_save, load=checked_load)


def main() -> None:
    """Run the example."""
    spec = importlib.util.spec_from_file_location("elastic_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    audit = Audit(Path(os.environ[NOTES]))
    audited(example, audit)
    example.main()
    audit.note(event="finished", step=audit.step, parameters=audit.fingerprint())


if __name__ == "__main__":
    main()
