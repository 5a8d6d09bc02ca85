"""FSDP as it was before FSDP2, a unit for each layer."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from observe_parts.loop import train
from observe_parts.models import batches, perceptron, start

rank = start()
model = FullyShardedDataParallel(
    perceptron(),
    auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
    device_id=torch.device("cpu"),
)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches(rank, 1024))
