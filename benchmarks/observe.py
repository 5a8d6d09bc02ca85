"""What watching costs: an agent that stays dense against plain DDP, paired in one run.

    python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/observe.py [--json]

Two copies of an LSTM language model train in turn, a block of steps each, so that drift of the machine hits both.
Ratios are of a block with the agent to the plain block before it; 1.00 is the limit, as the agent only adds work.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent


class Model(nn.Module):
    """An LSTM over bytes; ``width`` 448 has about 1 M parameters, 900 about 3.7 M."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.lstm = nn.LSTM(64, width, batch_first=True)
        self.out = nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(x))
        return self.out(hidden)  # type: ignore[no-any-return]


def block(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> float:
    """Seconds a step."""
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(module(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=448)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10, help="steps per block")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    x = torch.randint(0, 256, (16, 65))
    pair = []
    for _ in range(2):
        module = DistributedDataParallel(Model(options.width), bucket_cap_mb=1)
        pair.append((module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)))
    plain, watched = pair
    ratios, seconds = [], []
    with Agent(*watched, policy="dense", controller=None, data_dir="gravac-runs", job="observe") as agent:
        for number in range(options.blocks + 2):
            base = block(*plain, x, options.steps)
            ours = block(*watched, x, options.steps)
            if number >= 2:
                ratios.append(ours / base)
                seconds.append((base, ours))
        elements = sum(p.numel() for p in watched[0].parameters())
        assert agent.state is not None
        assert agent.state.payload_bytes == agent.state.dense_bytes
    if dist.get_rank() == 0:
        low, middle, high = statistics.quantiles(ratios, n=4)
        row = {
            "name": "observe",
            "n": elements,
            "cf": 1.0,
            "baseline": statistics.median(base for base, _ in seconds),
            "seconds": statistics.median(ours for _, ours in seconds),
            "ratio": statistics.median(base / ours for base, ours in seconds),
            "slowdown_quartiles": [low, middle, high],
        }
        print(
            json.dumps(row)
            if options.json
            else f"plain DDP {row['baseline']:.4f} s/step, with a dense agent {row['seconds']:.4f} s/step; "
            f"slowdown median {middle:.3f}, quartiles {low:.3f} to {high:.3f} over {len(ratios)} pairs"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
