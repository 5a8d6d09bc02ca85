"""The description of a job in its journal: names, sizes, versions."""

import hashlib
import platform
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gravac import optim
from gravac.collectives import backend_of
from gravac.predict.exchange import FIRST_BUCKET_BYTES
from gravac.protocol import Environment, ModelShape, OptimizerKind, OptimizerSpec, job
from gravac.version import __version__
from gravac_agent.exchange.hook import real_shape
from gravac_agent.fsdp.model import DataParallel, ShardedModel

GIT_SECONDS = 2.0
"""Longest wait for git at the start of a job."""


def job_name() -> str:
    """Return script name, start time and a random part, such as ``train_ddp-20261121-093000-5f3a``.

    In a worker of Ray Train, the experiment's name takes the place of the script's.
    """
    script = Path(sys.argv[0] or "job")
    stem = _ray_experiment() or (script.parent.name if script.stem == "__main__" else script.stem)
    return (
        re.sub(r"[^A-Za-z0-9._-]", "-", stem)[:40] + time.strftime("-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    )


def _ray_experiment() -> str | None:
    """Return the name of the Ray Train experiment that this process works for; None elsewhere."""
    train = sys.modules.get("ray.train")  # a worker has imported it
    try:
        return None if train is None else str(train.get_context().get_experiment_name() or "") or None
    except Exception:  # not in a worker, or another version of Ray
        return None


def environment(module: DataParallel, commit: str | None) -> Environment:
    """Return versions, backend and device, with the ``commit`` of the trainer's script."""
    device = next(module.parameters()).device
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        gravac=__version__,
        platform=platform.platform(),
        backend=backend_of(module.process_group, device.type),
        device=str(device),
        revision=commit,
    )


def revision() -> str | None:
    """Return the git commit of the trainer's script; None where it is not known."""
    try:
        script = Path(sys.argv[0] or ".").resolve()
    except OSError:  # the working folder is gone
        return None
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


def model_shape(module: DataParallel) -> ModelShape:
    """Return the model's class and the sizes of its trainable parameters."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return ModelShape(
        name=type(module.module).__name__,
        tensors=len(trainable),
        elements=sum(parameter.numel() for parameter in trainable),
        digest=names_digest(module),
    )


def trained_shapes(module: DataParallel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the trained parameters by name."""
    return {name: real_shape(one) for name, one in module.module.named_parameters() if one.requires_grad}


def bucket_count(module: DataParallel, trained: Sequence[Tensor]) -> int:
    """Return in how many buckets the gradients of these parameters are exchanged, once DDP has ordered them."""
    if isinstance(module, ShardedModel):
        return len(module.groups)
    count, size = 0, 0
    limit = FIRST_BUCKET_BYTES if module.bucket_bytes_cap_default else module.bucket_bytes_cap
    for parameter in reversed(trained):
        size += parameter.nbytes
        if size >= limit:
            count, size, limit = count + 1, 0, module.bucket_bytes_cap
    return count + (size > 0)


def names_digest(module: DataParallel) -> str:
    """Return a digest of the names and shapes of all parameters. It differs between most models.

    Compiling a part of the model does not change it.
    """
    lines = [
        f"{name.replace('_orig_mod.', '')} {tuple(parameter.shape)}"
        for name, parameter in module.module.named_parameters()
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside wrappers, such as Accelerate's (``optimizer``) and ZeRO's (``optim``)."""
    for _ in range(8):  # a wrapper may hold itself
        inner = getattr(optimizer, "optimizer", None) or getattr(optimizer, "optim", None)
        if not hasattr(inner, "param_groups"):
            break
        optimizer = inner
    return optimizer


def optimizer_spec(*optimizers: Any) -> OptimizerSpec:
    """Return class, kind and first settings of the ``decisive`` optimizer, with the names of all.

    What its first parameter group does not state as a number in range is unknown.
    """
    optimizer = innermost(decisive(optimizers))
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    momentum = number(group.get("momentum"), 1.0)
    if momentum is None:
        momentum = _first_beta(group)
    return OptimizerSpec(
        name=", ".join(class_name(type(innermost(each))) for each in optimizers)[:1000],
        kind=kind_of(optimizer),
        learning_rate=number(group.get("lr")),
        momentum=momentum,
        weight_decay=number(group.get("weight_decay")),
    )


def decisive(optimizers: Sequence[Any]) -> Any:
    """Return the optimizer whose kind plans are chosen for."""
    sizes = (
        sum(param.numel() for group in one.param_groups for param in group["params"]) for one in optimizers
    )
    kinds = (kind_of(innermost(one)) for one in optimizers)
    return optimizers[job.decisive(list(zip(kinds, sizes, strict=True)))]


def kind_of(optimizer: Any) -> OptimizerKind:
    """Return how an optimizer steps, by its class and β₁."""
    betas = [beta for group in optimizer.param_groups if (beta := _first_beta(group)) is not None]
    return job.optimizer_kind([class_name(one) for one in type(optimizer).__mro__], max(betas, default=None))


def class_name(kind: type) -> str:
    """Return the name of an optimizer's class; torch's have the names of those of ``gravac.optim``."""
    own = kind in (optim.Adam, optim.AdamW)
    return f"{job.OWN_OPTIMIZERS * own}{kind.__name__}"


def _first_beta(group: dict[str, Any]) -> float | None:
    betas = group.get("betas")
    return number(betas[0], 1.0) if isinstance(betas, Sequence) and betas else None


def number(value: Any, most: float = 1e15) -> float | None:
    """Return a user's value as a float from 0 to ``most``; None when it is none."""
    try:
        found = -1.0 if isinstance(value, str) else float(value)
    except Exception:  # whatever the value's own class raises
        return None
    return found if 0.0 <= found <= most else None


def groups_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Return the parameter groups of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]
