"""Whether a training learns as well from a GPU's whole messages as from exact Top-k with as many elements.

``python -m lab.benchmarks.whole_messages TASK PLAN RANKS STEPS WAY --seed S`` prints the held-out loss. Ways: ``whole``
sends what ``gravac.kernels.device.tiled`` chooses, in plain torch, with the same rule as on a GPU; ``exact`` what the
codec on a CPU chooses; ``dense`` all. The residual memory is the same. ``--collective owners`` compares shards of tiles
with shards of elements.

It also prints what is missing in the mean of the first step, where nothing waits yet, and the mean over ranks of what
waits at the end: energies, next to a mean gradient's.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gravac.collectives import Communicator, Work
from gravac.kernels.device import step_sums
from gravac.memories import Bucket
from gravac_agent.exchange.compensation import NO_SURVEY, Survey
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.streams.groups import GroupOffer
from gravac_agent.streams.messages import Messages
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.plans import parse
from gravac_lab.simulate.ranks import OfRank, SimulatedRanks
from gravac_lab.tasks import make

WAYS = ("whole", "exact", "dense")


class WholeRanks(SimulatedRanks):
    """Ranks that send whole messages, by the agent's own route."""

    def _rank(
        self,
        communicator: Communicator,
        buckets: Sequence[Bucket],
        gradients: Sequence[Tensor],
        plans: Sequence[StepPlan],
        step: int,
        surveyed: bool,
    ) -> OfRank:
        channels, done = self.channels[communicator.rank], OfRank(Survey(False), mean_sq=None)
        channels.gradients_stay = channels.counts_senders = True
        messages, counts = Messages(channels, True, Work.wait), torch.ones((), dtype=torch.bool, device="cpu")
        row = torch.zeros(step_sums.ROW, dtype=torch.float64, device="cpu")
        for bucket, gradient, plan in zip(buckets, gradients, plans, strict=True):
            channel = channels.begin(bucket, plan)
            layout = messages.layout(channel, plan, gradient)
            assert layout is not None, f"{plan} sends no whole messages"
            offer = GroupOffer(channel, layout, gradient, gradient)
            (sent,) = messages.send(plan, [offer], done.sums, NO_SURVEY, lambda _: row)
            sent.group.pass_on()
            sent.work.wait()
            sent.resolve(counts)
            done.payload_bytes += sent.payload_bytes
            done.dense_bytes += gradient.nbytes
            done.supports.append(sent.step.buffers.places)
            done.senders.append((channel.senders, channel.of))
        return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task")
    parser.add_argument("plan", help="codec@CF")
    parser.add_argument("ranks", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--collective", choices=("gather", "owners"), default="gather")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chosen = parse("dense" if asked.way == "dense" else asked.plan)
    kind = WholeRanks if asked.way == "whole" else SimulatedRanks
    collective = "auto" if asked.way == "dense" else asked.collective
    ranks = kind(asked.ranks, chosen.compressor or "dense", seed=asked.seed, collective=collective)
    # Unclipped: to clip as an agent does takes what whole messages do not measure here.
    recipe = replace(make(asked.task), clip_norm=None)
    energies, errors, sent = list[float](), list[float](), 0

    def observe(gradients: Sequence[Sequence[Tensor]]) -> None:
        energies.append(_energy_of_mean(gradients))

    learner = Learner(recipe, asked.ranks, asked.seed, asked.steps, ranks, observe=observe)
    for _ in range(asked.steps):
        sent += learner.train(chosen.plan()).exchanged.payload_bytes
        waits = [one.memory.state_dict() for one in ranks.channels]
        errors.append(_energy_of_mean([list(one.values()) for one in waits]))
    print(
        f"{asked.task} {asked.plan} {asked.way} {collective} seed {asked.seed}: held-out loss "
        f"{learner.evaluate().loss:.4f}, {sent / asked.steps:,.0f} bytes of payload a step, "
        f"missing {errors[0] / energies[0]:.4f}, waits {errors[-1] / energies[-1]:.3f}"
    )


def _energy_of_mean(tensors: Sequence[Sequence[Tensor]]) -> float:
    """Return the energy of the mean over ranks."""
    means = (torch.stack(each).mean(0) for each in zip(*tensors, strict=True))
    return sum(float(mean.double().square().sum()) for mean in means)


if __name__ == "__main__":
    main()
