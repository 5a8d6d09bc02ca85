"""The description of a job in its journal: names, sizes, versions."""

import platform
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.protocol import Environment, ModelShape
from gravac.version import __version__

GIT_SECONDS = 2.0
"""Longest wait for git at the start of a job."""


def job_name() -> str:
    """Return script name, start time and a random part, such as ``train_ddp-20261121-093000-5f3a``."""
    script = Path(sys.argv[0] or "job")
    stem = script.parent.name if script.stem == "__main__" else script.stem
    return (
        re.sub(r"[^A-Za-z0-9._-]", "-", stem)[:40] + time.strftime("-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    )


def environment(module: DistributedDataParallel) -> Environment:
    """Return versions, backend, device and commit."""
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        gravac=__version__,
        platform=platform.platform(),
        backend=dist.get_backend(module.process_group),
        device=str(next(module.parameters()).device),
        revision=revision(),
    )


def revision() -> str | None:
    """Return the git commit of the trainer's script; None where it is not known."""
    script = Path(sys.argv[0] or ".").resolve()
    command = [
        "git",
        "-C",
        str(script if script.is_dir() else script.parent),
        "rev-parse",
        "--verify",
        "HEAD",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if re.fullmatch(r"[0-9a-f]{40,64}\n", done.stdout) else None


def model_shape(module: DistributedDataParallel) -> ModelShape:
    """Return the model's class and the sizes of its trainable parameters."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return ModelShape(
        name=type(module.module).__name__,
        tensors=len(trainable),
        elements=sum(parameter.numel() for parameter in trainable),
    )
