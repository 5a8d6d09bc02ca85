"""DDP whose buckets are sent during backward."""

import torch
from torch.nn.parallel import DistributedDataParallel

from observe_parts.loop import train
from observe_parts.models import batches, perceptron, start

rank = start()
model = DistributedDataParallel(perceptron(), bucket_cap_mb=0.6)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches(rank, 1024))
