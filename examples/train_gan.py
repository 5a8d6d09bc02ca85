"""A GAN with two agents in one process: one for the generator, one for the discriminator.

It learns scikit-learn's handwritten digits (8x8 pixels). Run it on one machine:

    pip install scikit-learn
    torchrun --standalone --nproc-per-node 2 examples/train_gan.py

Each agent has a page, a journal and decisions of its own.
"""

import argparse
from itertools import cycle, islice

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from gravac import Agent

NOISE = 16


def digits() -> Tensor:
    """Return all images, from -1 to 1, shape (1797, 64)."""
    return torch.tensor(load_digits().data.tolist(), dtype=torch.float32) / 8 - 1


def generator(width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(NOISE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, 64), nn.Tanh()),
    )


def discriminator(width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2)),
        nn.Linear(width, 1),
    )


def distance(images: Tensor, others: Tensor) -> float:
    """Return how far apart the means and covariances of two sets of images are."""
    mean = (images.mean(0) - others.mean(0)).square().sum()
    return float(mean + (images.T.cov() - others.T.cov()).square().sum())


def noisy(images: Tensor) -> Tensor:
    """What the discriminator sees; noise keeps it from winning at once."""
    return images + torch.randn_like(images)


def models(width: int = 128) -> tuple[DistributedDataParallel, DistributedDataParallel, Adam, Adam]:
    """Return generator and discriminator, and an optimizer of each."""
    torch.manual_seed(0)
    G, D = (DistributedDataParallel(make(width), bucket_cap_mb=0.0005) for make in (generator, discriminator))
    return (
        *(G, D),
        Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99)),
        Adam(D.parameters(), lr=3e-3, betas=(0.5, 0.99)),
    )


def train(
    G: DistributedDataParallel,
    D: DistributedDataParallel,
    g_optimizer: Adam,
    d_optimizer: Adam,
    agents: tuple[Agent, Agent],
    *,
    steps: int,
    batch: int = 32,
) -> None:
    """Train both models while their agents run."""
    data = TensorDataset(digits())
    loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), drop_last=True)
    torch.manual_seed(dist.get_rank())  # each rank draws noise of its own
    for step, (real,) in enumerate(islice(cycle(loader), steps)):
        with torch.no_grad():
            fake = G(torch.randn(batch, NOISE))
        real_score, fake_score = D(noisy(torch.cat((real, fake)))).chunk(2)
        d_loss = softplus(-real_score).mean() + softplus(fake_score).mean()
        d_loss.backward()
        d_optimizer.step()
        d_optimizer.zero_grad()

        D.requires_grad_(False)  # else its gradients are exchanged, too, and never used
        g_loss = softplus(-D(noisy(G(torch.randn(batch, NOISE))))).mean()
        g_loss.backward()
        g_optimizer.step()
        g_optimizer.zero_grad()
        D.requires_grad_(True)

        for agent, loss in zip(agents, (g_loss, d_loss), strict=True):
            agent.log(loss=loss, samples=batch)
        if dist.get_rank() == 0 and (step + 1) % 100 == 0:
            apart = distance(sample(G), data.tensors[0])
            print(
                f"step {step + 1}  distance {apart:.1f}  pages {[agent.url for agent in agents]}", flush=True
            )


@torch.no_grad()
def sample(model: DistributedDataParallel) -> Tensor:
    """Return 500 images of the generator, always from the same noise."""
    images: Tensor = model.module(torch.randn(500, NOISE, generator=torch.Generator().manual_seed(0)))
    return images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    G, D, g_optimizer, d_optimizer = models()
    with Agent(G, g_optimizer, job="digits-g") as g_agent, Agent(D, d_optimizer, job="digits-d") as d_agent:
        train(G, D, g_optimizer, d_optimizer, (g_agent, d_agent), steps=options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
