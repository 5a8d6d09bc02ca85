"""What each way for payloads to meet costs, and how far training comes with it in as many steps.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 4 lab/benchmarks/collectives.py [--codec topk]
        [--cf 10 50 200] [--json]

An MLP (64-128-128-10) learns scikit-learn's digits, a batch of 16 a rank, SGD with momentum 0.9 after aggregation,
Top-k or a quantizer such as nearest with error feedback, the whole model one bucket. *area*: held-out loss, the mean
over the run (what training lost on its way); *last*: at its end; both are means over seeds. *gain*: energy of p along
what counts as sent, as the gate sees it. *link*: bytes a rank puts on its link a step. *CPU*: of exchanging a bucket of
3.5 M elements, best of some, without selecting and waiting. Needs scikit-learn: pip install 'gravac[digits]'.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gravac.aggregators import Aggregator, build
from gravac.collectives import CompressedAllReduce, ProcessGroupCommunicator
from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, ResidualMemory

WAYS = ("gather", "owners", "shared", "shared:leader=turns", "shared:leader=largest")
QUANTIZED_WAYS = ("gather", "compressed-all-reduce")
LARGE = 3_500_000


@dataclass(kw_only=True)
class Result:
    """One way at one CF; losses are means over seeds."""

    collective: str
    cf: float
    area: float
    last: float
    gain: float
    link_bytes: int
    cpu_seconds: float


def data() -> tuple[Tensor, Tensor]:
    images, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16.0, dtype=torch.float32)[order], torch.tensor(classes)[order]


def train(
    aggregator: Aggregator, cf: float, seed: int, steps: int, rate: float
) -> tuple[float, float, float, int]:
    """Mean and last held-out loss, mean gain of the second half, bytes on the link a step. CF 1: dense."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    inputs, classes = data()
    named = dict(model.named_parameters())
    shapes = tuple(tuple(one.shape) for one in named.values())
    bucket = Bucket(0, tuple(named), tuple(one.numel() for one in named.values()), shapes)
    optimizer, memory = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), ResidualMemory()
    rank, kept, came, sent_bytes, losses = aggregator.communicator.rank, 0.0, 0.0, 0, []
    part = memory.open(bucket)
    for step in range(steps):
        generator = torch.Generator().manual_seed(1_000_000 * seed + 1000 * step + rank)
        chosen = torch.randint(0, 1400, (16,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs[chosen]), classes[chosen]).backward()
        flat = torch.cat([one.grad.flatten() for one in named.values() if one.grad is not None])
        p = part.compensate(flat)
        flight = aggregator.open(bucket).prepare(p, (cf,), Key(seed, step, 0, rank), torch.float32).send(cf)
        energy, inner = (
            float(flight.codec.energy(flight.payload)),
            float(flight.codec.inner(flight.payload, p)),
        )
        if step >= steps // 2:
            kept, came = kept + inner**2 / energy, came + float(p.square().sum())
        part.update(flight.codec, flight.payload)
        flight.work.wait()
        flight.mean_into(flat)
        memory.commit()
        aggregator.commit()
        sent_bytes += flight.sent_bytes
        for one, piece in zip(named.values(), flat.split(list(bucket.numels)), strict=True):
            one.grad = piece.view_as(one)
        optimizer.step()
        with torch.no_grad():
            losses.append(float(cross_entropy(model(inputs[1400:]), classes[1400:])))
    sums = torch.tensor([kept, came, float(sent_bytes) / steps], dtype=torch.float64)
    dist.all_reduce(sums)
    return sum(losses) / steps, losses[-1], float(sums[0] / sums[1]), int(sums[2] / dist.get_world_size())


def handling(aggregator: Aggregator, cf: float) -> float:
    """CPU seconds of this thread for one exchange of a large bucket; gloo moves bytes in threads of its own."""
    bucket = Bucket(0, ("weight",), (LARGE,))
    rank, best = aggregator.communicator.rank, float("inf")
    x = torch.randn(LARGE, generator=torch.Generator().manual_seed(rank)) ** 3
    mean = torch.empty(LARGE)
    for step in range(8):
        draft = aggregator.open(bucket).prepare(x, (cf,), Key(0, step, 0, rank), torch.float32)
        dist.barrier()
        begun = time.thread_time()
        flight = draft.send(cf)
        flight.work.wait()
        flight.mean_into(mean)
        best = min(best, time.thread_time() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codec", default="topk")
    parser.add_argument("--cf", type=float, nargs="+", default=[10.0, 50.0, 200.0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    group = ProcessGroupCommunicator(dist.group.WORLD)
    ways = QUANTIZED_WAYS if CompressedAllReduce.fits(build_codec(chosen.codec)) else WAYS
    results = []
    for cf in [1.0, *chosen.cf]:
        for way in ways if cf > 1 else ("gather",):
            runs = [
                train(build(chosen.codec, group, way), cf, seed, chosen.steps, chosen.rate)
                for seed in range(chosen.seeds)
            ]
            area, last, gain, link = (sum(each) / len(each) for each in zip(*runs, strict=True))
            cpu = handling(build(chosen.codec, group, way), cf) if cf > 1 else 0.0
            results.append(
                Result(
                    collective=way if cf > 1 else "dense",
                    cf=cf,
                    area=area,
                    last=last,
                    gain=gain,
                    link_bytes=int(link),
                    cpu_seconds=cpu,
                )
            )
            if group.rank == 0 and not chosen.json:
                print(
                    f"{results[-1].collective:22} CF {cf:<5g} area {area:.3f} last {last:.3f} gain {gain:.3f} "
                    f"link {link:8.0f} B  CPU {1e3 * cpu:.1f} ms",
                    flush=True,
                )
    if group.rank == 0 and chosen.json:
        print(json.dumps([asdict(result) for result in results]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
