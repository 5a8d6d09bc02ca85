"""A training that knows nothing of gravac but with ``--itself``: ``torchrun … program.py STEPS``.

It prints its losses to the bit.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer

arguments = argparse.ArgumentParser()
arguments.add_argument("steps", type=int)
arguments.add_argument("--end", type=int, default=0)
arguments.add_argument("--without-folder", action="store_true", help="as if its disk went away")
arguments.add_argument("--itself", action="store_true", help="with the line in the script")
arguments.add_argument("--hooks", choices=["kept", "gone", "passed"], default="kept", help="DDP's")
asked = arguments.parse_args()
if asked.itself:
    import gravac

    gravac.observe(steps=2, warmup=2)
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
if asked.without_folder and dist.get_rank() == 0:
    folder = Path(json.loads(os.environ["GRAVAC_OBSERVE"])["folder"])
    shutil.rmtree(folder)
    folder.touch()
model = DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.02
)
if asked.hooks == "gone":
    model.to(torch.double).to(torch.float)
trained = torch.optim.AdamW(model.parameters())
called = model.module if asked.hooks == "passed" else model
losses = []
for _ in range(asked.steps):
    loss = called(torch.randn(8, 64)).square().mean()
    loss.backward()
    trained.step()
    trained.zero_grad()
    losses.append(loss.item())
if dist.get_rank() == 0:
    print(*(each.hex() for each in losses))
    print(os.environ.get("OTHER_SITECUSTOMIZE"), len(optimizer._global_optimizer_post_hooks))
dist.destroy_process_group()
sys.exit(asked.end)
