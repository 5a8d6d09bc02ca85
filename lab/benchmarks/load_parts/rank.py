"""One rank of a small real job that reports to a controller; writes when each step ended, by the machine's clock."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent


def main(url: str, job: str, seconds: float, out: Path) -> None:
    """Train for this many seconds; all ranks stop at the same step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    module = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs, targets = torch.randn(32, 256), torch.randint(0, 10, (32,))
    ended: list[float] = []
    with Agent(module, optimizer, controller=url, job=job, policy="static:cf=10", window=20) as agent:
        agent.wait_ready(60)
        until = time.monotonic() + seconds
        go_on = torch.ones(1)
        while go_on.item():
            for _ in range(20):
                nn.functional.cross_entropy(module(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
                ended.append(time.monotonic())
            go_on.fill_(float(time.monotonic() < until))
            dist.broadcast(go_on, 0)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(ended))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
