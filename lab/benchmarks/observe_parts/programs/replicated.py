"""torch's ``replicate()``, with batches so large that its messages hardly count."""

import torch
from torch.distributed._composable.replicate import replicate

from observe_parts.loop import train
from observe_parts.models import batches, perceptron, start

rank = start()
model = perceptron()
replicate(model, bucket_cap_mb=0.6)
train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches(rank, 4096))
