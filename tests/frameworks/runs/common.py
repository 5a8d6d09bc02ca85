"""What the scripts of this folder share: a digest of the parameters, and the results of each rank."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn


def digest(module: nn.Module) -> str:
    """Bit-equal parameters have the same one."""
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def run_all(cases: dict[str, Callable[[Path], Any]], folder: Path, rank: int, end: bool = True) -> None:
    """Run the cases, each in a folder of its own, write what they return, and ``end`` the process group."""
    found = {}
    for name, case in cases.items():
        (folder / name).mkdir(exist_ok=True)
        found[name] = case(folder / name)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    if end and dist.is_initialized():
        dist.destroy_process_group()
