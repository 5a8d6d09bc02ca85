"""DDP that exchanges the gradients of four micro-batches at once, by ``no_sync``."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from observe_parts.models import agent, batches, perceptron, start
from observe_parts.turns import Turns

MICRO_BATCHES = 4

rank = start()
model = DistributedDataParallel(perceptron(), bucket_cap_mb=0.6)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = batches(rank, 384)
with agent(model, optimizer), Turns() as turns:
    more = True
    while more:
        for micro in range(MICRO_BATCHES):
            inputs, targets = next(data)
            with model.no_sync() if micro < MICRO_BATCHES - 1 else nullcontext():
                loss = mse_loss(model(inputs), targets) / MICRO_BATCHES
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        more = turns.stepped(loss)
dist.destroy_process_group()
