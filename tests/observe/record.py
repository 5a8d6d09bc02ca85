"""Records the small traces of this folder, of two ranks on gloo each:

OMP_NUM_THREADS=1 .venv/bin/torchrun --standalone --nproc-per-node 2 tests/observe/record.py tests/observe/traces
"""

import gzip
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

SIZE = 256
LATE_SECONDS = 0.05


def model(layers: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(layers)))


def trained(module: nn.Module, before: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Return a step of a module, with a loss that all ranks add up."""
    optimizer, x = torch.optim.AdamW(module.parameters()), torch.randn(64, SIZE)

    def step() -> None:
        before()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())

    return step


def ddp() -> Callable[[], None]:
    return trained(DistributedDataParallel(model(), bucket_cap_mb=0.3))


def late() -> Callable[[], None]:
    """Rank 1 comes later in each step."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.3)
    return trained(module, lambda: time.sleep(LATE_SECONDS * dist.get_rank()))


def fsdp2() -> Callable[[], None]:
    module, mesh = model(2), init_device_mesh("cpu", (2,))
    for layer in module:
        fully_shard(layer, mesh=mesh)
    return trained(fully_shard(module, mesh=mesh))


def tensor() -> Callable[[], None]:
    mesh = init_device_mesh("cpu", (2,))
    return trained(parallelize_module(model(2), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}))


def tiny() -> Callable[[], None]:
    """One all-reduce for each of many parameters, when backward has ended."""
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    optimizer, x = torch.optim.SGD(module.parameters(), lr=0.1), torch.randn(4, 8)

    def step() -> None:
        module(x).square().mean().backward()
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline() -> Callable[[], None]:
    stage, rank = model(2), dist.get_rank()
    optimizer, x = torch.optim.AdamW(stage.parameters()), torch.randn(64, SIZE)

    def step() -> None:
        if rank == 0:
            out, gradient = stage(x), torch.empty(64, SIZE)
            dist.send(out.detach(), 1)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            given = torch.empty(64, SIZE)
            dist.recv(given, 0)
            stage(given.requires_grad_()).square().mean().backward()
            dist.send(given.grad, 0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for kind in (ddp, late, fsdp2, tensor, tiny, pipeline):
        step = kind()
        file = folder / f"{kind.__name__}-{dist.get_rank()}.json"
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=True,
            schedule=schedule(wait=1, warmup=2, active=2),
        ) as recorded:
            for _ in range(5):
                step()
                recorded.step()
        recorded.export_chrome_trace(str(file))
        file.with_suffix(".json.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
