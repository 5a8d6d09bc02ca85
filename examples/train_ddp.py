"""An ordinary DDP training with one line added. The model learns Python source text; each rank uses one core.

Run it on one machine:

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

On several machines: docs/multi-host.md.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from gravac import Agent


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of the standard library's source text, each with the same piece shifted by one byte as target."""

    def __init__(self, length: int) -> None:
        files = sorted(Path(os.__file__).parent.glob("*.py"))[:60]
        self.text = torch.tensor(list(b"".join(file.read_bytes() for file in files)), dtype=torch.long)
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.length
        return (
            self.text[start : start + self.length],
            self.text[start + 1 : start + 1 + self.length],
        )


class Model(nn.Module):
    """A small GRU over bytes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.gru = nn.GRU(64, width, batch_first=True)
        self.scores = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.gru(self.embedding(text))
        scores: Tensor = self.scores(hidden)
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="sequences per rank")
    parser.add_argument("--length", type=int, default=64, help="bytes in a sequence")
    parser.add_argument("--width", type=int, default=256, help="hidden units of the model")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Text(options.length)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Model(options.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)

    step = 0
    with Agent(model, optimizer) as agent:  # <- the one line added
        while step < options.steps:
            sampler.set_epoch(step)
            for inputs, targets in loader:
                loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                loss.backward()
                # In place of torch.nn.utils.clip_grad_norm_: see docs/memories.md, "Clipping".
                agent.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
                agent.log(loss=loss)  # optional: the page draws it beside the compression factor
                step += 1
                if dist.get_rank() == 0 and step % 50 == 0:
                    print(f"step {step}  loss {loss.item():.3f}  page {agent.url}", flush=True)
                if step == options.steps:
                    break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
