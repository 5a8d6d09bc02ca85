"""A small classification that four simulated ranks learn with DGC's selection: what DGC does to training."""

import itertools
from collections.abc import Callable

import torch

from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, build

RANKS, FEATURES, HIDDEN, CLASSES, SAMPLES = 4, 20, 64, 10, 4000


def ramp(steps: int) -> Callable[[int], float]:
    """The paper's warm-up by step: CF 4, 16, 64, 250 for ``steps`` each, then 1000."""
    return lambda step: (4.0, 16.0, 64.0, 250.0, 1000.0)[min(4, step // steps)]


def train(
    memory: str,
    momentum: float,
    cf_at: Callable[[int], float],
    seed: int,
    steps: int = 250,
    rate: float = 0.05,
) -> float:
    """Mean cross-entropy over all samples in the end. ``momentum``: of the optimizer, after averaging."""
    draw = torch.Generator().manual_seed(seed)
    teacher = torch.randn(FEATURES, CLASSES, generator=draw)
    x = torch.randn(SAMPLES, FEATURES, generator=draw)
    y = (torch.tanh(x) @ teacher + 0.3 * torch.randn(SAMPLES, CLASSES, generator=draw)).argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = (FEATURES, HIDDEN, HIDDEN, CLASSES)
        layers = [
            layer
            for fan_in, fan_out in itertools.pairwise(sizes)
            for layer in (torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU())
        ]
    net = torch.nn.Sequential(*layers[:-1])
    criterion, parameters = torch.nn.CrossEntropyLoss(), list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    bucket = Bucket(0, tuple(map(str, range(len(parameters)))), tuple(p.numel() for p in parameters))
    codec, memories = build_codec("dgc"), [build(memory) for _ in range(RANKS)]
    for step in range(steps):
        mean = torch.zeros(sum(bucket.numels))
        for rank, one in enumerate(memories):
            one.world_size = RANKS
            batch = torch.randint(0, SAMPLES, (16,), generator=draw)
            gradients = torch.autograd.grad(criterion(net(x[batch]), y[batch]), parameters)
            part = one.open(bucket)
            p = part.compensate(torch.cat([g.flatten() for g in gradients]))
            payload = codec.compress(p, cf_at(step), Key(seed, step, 0, rank), torch.float32)
            codec.decompress(payload, mean, 1.0 / RANKS)
            part.update(codec, payload)
            one.commit()
        for parameter, piece in zip(parameters, torch.split(mean, list(bucket.numels)), strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
    with torch.no_grad():
        return float(criterion(net(x), y))
