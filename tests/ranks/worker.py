"""One rank of a distributed test: ``worker.py SCENARIO ARGUMENTS``; the result goes to a JSON file."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
import scenarios  # noqa: E402

if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    result = getattr(scenarios, sys.argv[1])(rank, world, **json.loads(sys.argv[2]))
    Path(os.environ.pop("RANK_RESULT_PATH")).write_text(json.dumps(result))
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads outlive the group and may abort the interpreter's shutdown
