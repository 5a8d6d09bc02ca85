"""Clipping and error feedback: what is lost, and what it does to training, by where gradients are clipped.

``python -m tests.support.maths.clipping_task`` prints a table. Four simulated ranks learn a
small classification with Top-k and error feedback; all in this process, the same on every run.
"""

import itertools
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, build

RANKS, FEATURES, HIDDEN, CLASSES, SAMPLES = 4, 20, 64, 10, 4000
Order = Literal["none", "before", "after"]


class Outcome(NamedTuple):
    """``applied``, ``residual``, ``came`` and ``cut``: sums over steps, means over ranks, float64, ``(n,)``."""

    loss: float
    applied: Tensor
    residual: Tensor
    came: Tensor
    cut: Tensor
    clipped_steps: float
    """Share of the steps in which something was cut off."""
    cut_share: float
    """Sum of the norms of what was cut off, over that of what was there before the cut."""


def clipped(x: Tensor, limit: float) -> Tensor:
    """``x`` scaled down to a norm of ``limit``, as ``clip_grad_norm_`` does."""
    return x * min(1.0, limit / (float(x.norm()) + 1e-6))


def train(order: Order, limit: float, cf: float, seed: int, steps: int = 400, rate: float = 0.1) -> Outcome:
    """``before``: each rank clips its own gradient, then adds the residual. ``after``: the exchanged mean is clipped,
    as by ``clip_grad_norm_`` between ``backward`` and ``step``."""
    draw = torch.Generator().manual_seed(seed)
    teacher = torch.randn(FEATURES, CLASSES, generator=draw)
    x = torch.randn(SAMPLES, FEATURES, generator=draw)
    y = (torch.tanh(x) @ teacher + 0.3 * torch.randn(SAMPLES, CLASSES, generator=draw)).argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pairs = itertools.pairwise((FEATURES, HIDDEN, HIDDEN, CLASSES))
        layers = [layer for sizes in pairs for layer in (torch.nn.Linear(*sizes), torch.nn.ReLU())]
    net, criterion = torch.nn.Sequential(*layers[:-1]), torch.nn.CrossEntropyLoss()
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    bucket = Bucket(0, tuple(map(str, range(len(parameters)))), tuple(p.numel() for p in parameters))
    codec, memories = build_codec("topk"), [build("residual") for _ in range(RANKS)]
    n = sum(bucket.numels)
    applied, came, cut = (torch.zeros(n, dtype=torch.float64) for _ in range(3))
    cuts, before_cuts, clipped_steps = 0.0, 0.0, 0
    for step in range(steps):
        mean, lost = torch.zeros(n), torch.zeros(n)
        for rank, memory in enumerate(memories):
            batch = torch.randint(0, SAMPLES, (16,), generator=draw)
            gradients = torch.autograd.grad(criterion(net(x[batch]), y[batch]), parameters)
            raw = torch.cat([g.flatten() for g in gradients])
            offered = clipped(raw, limit) if order == "before" else raw
            came += raw.double() / RANKS
            lost += (raw - offered) / RANKS
            before_cuts += float(raw.norm()) / RANKS if order == "before" else 0.0
            cuts += float((raw - offered).norm()) / RANKS
            part = memory.open(bucket)
            p = part.compensate(offered, dense=cf == 1.0)
            payload = None if cf == 1.0 else codec.compress(p, cf, Key(seed, step, 0, rank), torch.float32)
            if payload is None:
                mean.add_(p, alpha=1.0 / RANKS)
            else:
                codec.decompress(payload, mean, 1.0 / RANKS)
            part.update(codec, payload)
            memory.commit()
        if order == "after":
            kept = clipped(mean, limit)
            lost = mean - kept
            before_cuts += float(mean.norm())
            cuts += float(lost.norm())
            mean = kept
        clipped_steps += bool(lost.any())
        cut += lost.double()
        applied += mean.double()
        for parameter, piece in zip(parameters, mean.split(list(bucket.numels)), strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
    residual = torch.zeros(n, dtype=torch.float64)
    for memory in memories:
        state = memory.state_dict()
        if state:
            residual += torch.cat([state[name] for name in bucket.names]).double() / RANKS
    with torch.no_grad():
        loss = float(criterion(net(x), y))
    share = cuts / before_cuts if before_cuts else 0.0
    return Outcome(loss, applied, residual, came, cut, clipped_steps / steps, share)


def main() -> None:
    """The table, means of three seeds."""
    print("| CF | clipped | loss | steps in which something is cut | share cut off |\n|---|---|---|---|---|")
    for cf in (1.0, 100.0):
        for order in ("none", "before", "after"):
            runs = [train(order, 1.0, cf, seed) for seed in range(3)]  # type: ignore[arg-type]
            loss, steps, share = (
                sum(values) / 3
                for values in zip(*((r.loss, r.clipped_steps, r.cut_share) for r in runs), strict=True)
            )
            losses = ", ".join(f"{run.loss:.3f}" for run in runs)
            print(f"| {cf:g} | {order} | {loss:.3f} ({losses}) | {100 * steps:.0f} % | {100 * share:.0f} % |")


if __name__ == "__main__":
    main()
