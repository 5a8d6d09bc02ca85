"""FSDP2 within two groups of ranks, which replicate (HSDP): four ranks."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from observe_parts.loop import train
from observe_parts.models import batches, perceptron, start

rank = start()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = perceptron()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches(rank, 512))
