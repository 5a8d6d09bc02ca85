"""DDP with the whole model in one bucket, which is sent when backward has ended."""

import torch
from torch.nn.parallel import DistributedDataParallel

from observe_parts.loop import train
from observe_parts.models import batches, perceptron, start

rank = start()
model = DistributedDataParallel(perceptron(), bucket_cap_mb=100)
train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), batches(rank, 1024))
