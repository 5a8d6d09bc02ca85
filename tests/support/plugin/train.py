"""One of two ranks that train with the plugin's codec, memory and policy: train.py RANK FOLDER."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from gravac_agent.errors import AgreementError

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
module = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
try:
    with Agent(
        module,
        optimizer,
        compressor="theirs:step=2",
        memory="theirs",
        policy="theirs",
        controller=None,
        data_dir=folder,
        window=2,
    ) as agent:
        for _ in range(6):
            optimizer.zero_grad()
            module(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        print("trained at CF", agent.state.cf)
except AgreementError as error:
    print("refused:", error)
dist.destroy_process_group()
