"""Error memories under block Random-k at 10x: final quality, bytes held, time a step. ConEF's table, scaled down.

    python lab/benchmarks/conef.py [--net mlp|resnet] [--seeds 3] [--steps 1200] [--batch 32] [--rate 0.015] [--json]

A small net learns scikit-learn's digits. Four workers in this process, each with its batch and its error memory. All
parameters are one bucket, as DDP makes of a net so small, and the codec is fitted to its tensors as the agent fits it:
this is what the agent sends. SGD with momentum after aggregation. All memories of a seed run in step, from equal
weights on equal batches, and their CPU time is taken in turn, so that other load on the machine hits all alike. The
rate falls to a tenth at 60 % and at 85 % of the steps; memories are rescaled then. Bytes are the most held in a step,
drafts and hash tables included, and compared with textbook error feedback, one float32 an element.
Needs scikit-learn: pip install 'gravac[digits]'.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gravac import compressors, memories
from gravac.compressors import Compressor, Key
from gravac.memories import Bucket, Memory
from gravac_lab.tasks.resnet import ResNet

WORKERS, CF, MOMENTUM = 4, 10.0, 0.9
NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    ),
    "resnet": lambda: ResNet(16),
}
RUNS = {
    "SGD, dense": "",
    "EF": "residual",
    "ConEF int8": "conef",
    "ConEF int4": "conef:bits=4",
    "ConEF 60 % (sketch)": "conef-sketch:size=0.4",
    "ConEF 90 % (sketch)": "conef-sketch:size=0.1",
    "no memory": "none",
}


@dataclass(slots=True)
class Run:
    """One model with its workers' memories; ``memory`` empty: dense."""

    memory: str
    seed: int
    net: str
    rate: float
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    held: list[Memory] = field(init=False)
    parameters: list[nn.Parameter] = field(init=False)
    bucket: Bucket = field(init=False)
    codec: Compressor = field(init=False)
    cpu_seconds: float = 0.0
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = NETS[self.net]()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=MOMENTUM)
        self.held = [memories.build(self.memory) for _ in range(WORKERS)] if self.memory else []
        named = list(self.model.named_parameters())[::-1]  # as gradients become ready
        self.parameters = [parameter for _, parameter in named]
        shapes = tuple(tuple(parameter.shape) for parameter in self.parameters)
        numels = tuple(parameter.numel() for parameter in self.parameters)
        self.bucket = Bucket(0, tuple(name for name, _ in named), numels, shapes)
        self.codec = compressors.build("blockrandomk").fitted(shapes)

    def step(self, number: int, batches: list[tuple[Tensor, Tensor]], rate: float) -> None:
        begun = time.process_time()
        before = self.optimizer.param_groups[0]["lr"]
        if rate != before:
            self.optimizer.param_groups[0]["lr"] = rate
            for memory in self.held:
                memory.rescale(before / rate)
        mean = torch.zeros(sum(self.bucket.numels))
        for rank, (images, classes) in enumerate(batches):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(images), classes).backward()
            flat = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
            self.send(flat, Key(self.seed, number, 0, rank), mean)
            if self.held:
                self.memory_bytes = max(self.memory_bytes, self.held[rank].nbytes())
                self.held[rank].commit()
        for parameter, piece in zip(self.parameters, mean.split(list(self.bucket.numels)), strict=True):
            parameter.grad = piece.view_as(parameter)
        self.optimizer.step()
        self.cpu_seconds += time.process_time() - begun

    def send(self, gradient: Tensor, key: Key, mean: Tensor) -> None:
        if not self.held:
            mean.add_(gradient, alpha=1.0 / WORKERS)
            return
        part = self.held[key.rank].open(self.bucket)
        p = part.compensate(gradient)
        payload = self.codec.compress(p, CF, key, torch.float32)
        self.codec.decompress(payload, mean, 1.0 / WORKERS)
        part.update(self.codec, payload)

    def quality(self, images: Tensor, classes: Tensor) -> tuple[float, float]:
        """Cross-entropy and accuracy in percent."""
        with torch.no_grad():
            scores = self.model(images)
        loss = float(nn.functional.cross_entropy(scores, classes))
        return loss, 100.0 * float((scores.argmax(1) == classes).float().mean())


def one_seed(seed: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    classes = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    held_out, training = order[::5], order[torch.arange(len(order)) % 5 != 0]
    runs = {name: Run(memory, seed, options.net, options.rate) for name, memory in RUNS.items()}
    generator = torch.Generator().manual_seed(seed)
    for number in range(options.steps):
        done = number / options.steps
        rate = options.rate * (1.0 if done < 0.6 else 0.1 if done < 0.85 else 0.01)
        picks = [
            training[torch.randint(len(training), (options.batch,), generator=generator)]
            for _ in range(WORKERS)
        ]
        batches = [(images[pick], classes[pick]) for pick in picks]
        for run in runs.values():
            run.step(number, batches, rate)
    found = {}
    for name, run in runs.items():
        loss, accuracy = run.quality(images[held_out], classes[held_out])
        training_loss, _ = run.quality(images[training], classes[training])
        found[name] = {
            "loss": loss,
            "accuracy": accuracy,
            "training_loss": training_loss,
            "memory_bytes": run.memory_bytes,
            "step_seconds": run.cpu_seconds / options.steps,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--net", choices=sorted(NETS), default="mlp")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=32, help="images a worker and step")
    parser.add_argument("--rate", type=float, default=0.015, help="learning rate at the start")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = []
    for seed in range(options.seeds):
        seeds.append(one_seed(seed, options))
        print(f"seed {seed} done", file=sys.stderr)
    textbook = 4 * sum(parameter.numel() for parameter in NETS[options.net]().parameters())
    rows = []
    for name in RUNS:
        row: dict[str, float | str] = {"name": name}
        for key in ("loss", "accuracy", "training_loss", "step_seconds"):
            values = [seed[name][key] for seed in seeds]
            row[key] = statistics.mean(values)
            row[f"{key}_error"] = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        row["memory_bytes"] = seeds[0][name]["memory_bytes"]
        row["saved_percent"] = 100 * (1 - seeds[0][name]["memory_bytes"] / textbook)
        row["time_over_ef"] = statistics.median(
            seed[name]["step_seconds"] / seed["EF"]["step_seconds"] for seed in seeds
        )
        rows.append(row)
    if options.json:
        print(json.dumps({**vars(options), "rows": rows}))
        return
    print(
        "| memory | held-out loss | accuracy % | training loss | bytes held a rank "
        "| saved of textbook EF's % | CPU time / EF's |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['name']} | {row['loss']:.4f} ± {row['loss_error']:.4f} "
            f"| {row['accuracy']:.2f} ± {row['accuracy_error']:.2f} "
            f"| {row['training_loss']:.5f} ± {row['training_loss_error']:.5f} "
            f"| {row['memory_bytes']:,.0f} | {row['saved_percent']:.1f} | {row['time_over_ef']:.3f} |"
        )


if __name__ == "__main__":
    main()
