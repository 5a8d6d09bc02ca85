"""DDP whose second rank comes later, as if it cleaned its inputs first."""

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from observe_parts.loop import train
from observe_parts.models import batches, perceptron, start

LATE_SECONDS = 0.06

rank = start()
model = DistributedDataParallel(perceptron(), bucket_cap_mb=0.6)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, optimizer, batches(rank, 1024), lambda: time.sleep(LATE_SECONDS * rank))
