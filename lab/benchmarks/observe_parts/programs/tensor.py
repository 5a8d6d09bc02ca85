"""Tensor parallelism on two ranks, with the same inputs on both."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from observe_parts.loop import train
from observe_parts.models import WIDTH, batches, start

start()
mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(WIDTH, 6 * WIDTH), nn.GELU(), nn.Linear(6 * WIDTH, WIDTH)) for _ in range(2))
)
for block in model:
    parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches(0, 512))
