"""A training of two ranks that ``gravac observe`` records.

    torchrun … -m tools.gpu.measure.observed cuda|cpu [--small]

It knows nothing of gravac's agent.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from tools.gpu.measure.gpt import Training

WARM_UP, RECORDED, AFTER = 5, 3, 2
"""Steps before the recording, in it, and after it, as a step ends when the next one begins."""


def main(arguments: list[str]) -> None:
    device = torch.device(arguments[0])
    if device.type == "cuda":
        # Before NCCL looks: two ranks on one GPU are taken for two hosts.
        os.environ["NCCL_HOSTID"] = f"gravac-rank-{os.environ['RANK']}"
        torch.cuda.set_device(0)
        device = torch.device("cuda", 0)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=30))
    with Training("tiny" if "--small" in arguments else "124m, 8 sequences", device) as training:
        for _ in range(WARM_UP + RECORDED + AFTER):
            training.step()
    dist.barrier(device_ids=[0] if device.type == "cuda" else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
