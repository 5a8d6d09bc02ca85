"""One rank of test_codec_gloo.py: ``gloo_rank.py ARGUMENTS``; prints what it found as one JSON line."""

import hashlib
import json
import sys
import warnings

import torch
import torch.distributed as dist
from maths.aggregator_checks import bucket, steps

from gravac.aggregators import build
from gravac.collectives import ProcessGroupCommunicator


def digest(text: str, count: int, cf: float, buckets: int) -> dict[str, object]:
    """``count`` steps of one member; what came out as a hash, and the bytes of a step."""
    matrices = [bucket(number, (16, 24), (16,), (16, 24)) for number in range(buckets)]
    group = dist.group.WORLD
    assert group is not None
    found = steps(build(text, ProcessGroupCommunicator(group)), count, cf, matrices)
    sha = hashlib.sha256()
    for step in found:
        for one in step:
            sha.update(bytes(one.mean.view(torch.uint8).tolist()))
    return {"mean": sha.hexdigest(), "payload_bytes": [one.payload_bytes for one in found[-1]]}


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(json.dumps([digest(*arguments) for arguments in json.loads(sys.argv[1])]))
    dist.destroy_process_group()
