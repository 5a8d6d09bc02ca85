"""Training that survives lost ranks: torchrun starts all ranks again, and they load the last checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 100 examples/elastic.py

Kill a rank while it runs, or stop it and start it with another number of ranks. See docs/checkpoints.md.
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import Agent, LoadPlanner


class Model(nn.Module):
    """A small GRU over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.gru = nn.GRU(64, 96, num_layers=3, batch_first=True)
        self.scores = nn.Linear(96, 256)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.gru(self.embedding(text))
        scores: Tensor = self.scores(hidden)
        return scores


def batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of this rank. They depend on the step alone, so a resumed run sees the same."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    starts = torch.randint(len(text) - 33, (8,), generator=generator).tolist()
    pieces = torch.stack([text[start : start + 33] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def newest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint: torch.distributed.checkpoint writes .metadata last."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, agent: Agent) -> None:
    """Save the states of all ranks, and remove older checkpoints."""
    path = folder / f"step-{step}"
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "agent": agent}
    dcp.save(state, checkpoint_id=path)
    if dist.get_rank() == 0:
        for other in folder.glob("step-*"):
            if other != path:
                shutil.rmtree(other)


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, agent: Agent) -> int:
    """Load the newest checkpoint, whichever number of ranks saved it. Returns its step; 0 where there is none."""
    path = newest(folder)
    if path is None:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "agent": agent}
    dcp.load(state, checkpoint_id=path, planner=LoadPlanner())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(path.name.removeprefix("step-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument(
        "--folder", type=Path, default=Path("checkpoints"), help="must be shared by all hosts"
    )
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:60]
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)))
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    with Agent(model, optimizer, job="elastic") as agent:  # the name: each start continues the same journal
        step = load(options.folder, model, optimizer, agent)
        while step < options.steps:
            inputs, targets = batch(text, step)
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            agent.log(loss=loss)
            step += 1
            if step % options.every == 0:
                save(options.folder, step, model, optimizer, agent)
                if dist.get_rank() == 0:
                    print(f"step {step}  loss {loss.item():.3f}  {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
