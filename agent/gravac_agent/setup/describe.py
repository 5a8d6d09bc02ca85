"""What a job says about itself in its journal: names, sizes, versions."""

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

import gravac
from gravac.protocol import Environment, ModelShape

GIT_SECONDS = 2.0
"""Longest that a job's start waits for git."""


def job_name() -> str:
    """Return script name, start time and a random part, such as ``train_ddp-20261121-093000-5f3a``."""
    script = Path(sys.argv[0] or "job")
    stem = script.parent.name if script.stem == "__main__" else script.stem
    return (
        re.sub(r"[^A-Za-z0-9._-]", "-", stem)[:40] + time.strftime("-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    )


def environment(module: DistributedDataParallel) -> Environment:
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        gravac=gravac.__version__,
        platform=platform.platform(),
        backend=dist.get_backend(module.process_group),
        device=str(next(module.parameters()).device),
        revision=revision(),
    )


def revision() -> str | None:
    """Git's name of the commit that the trainer's script is checked out at; None where there is none to be had."""
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
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return ModelShape(
        name=type(module.module).__name__,
        tensors=len(trainable),
        elements=sum(parameter.numel() for parameter in trainable),
    )
