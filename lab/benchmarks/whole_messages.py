"""Whether a training learns as well from a GPU's whole messages as from exact Top-k with as many elements.

``python -m lab.benchmarks.whole_messages TASK PLAN RANKS STEPS WAY --seed S`` prints the held-out loss. Ways: ``whole``
sends what ``gravac.kernels.device.tiled`` chooses, in plain torch, with the same rule as on a GPU; ``exact`` what the
codec on a CPU chooses; ``dense`` all. The residual memory is the same.
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
from gravac_agent.streams.groups import Offer
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
        encoder, done = self.encoders[communicator.rank], OfRank(Survey(False), mean_sq=None)
        encoder.gradients_stay = encoder.counts_senders = True
        messages, counts = Messages(encoder, True, Work.wait), torch.ones((), dtype=torch.bool, device="cpu")
        row = torch.zeros(step_sums.ROW, dtype=torch.float64, device="cpu")
        for bucket, gradient, plan in zip(buckets, gradients, plans, strict=True):
            channel = encoder.begin(bucket, plan)
            layout = messages.layout(channel, plan, gradient)
            assert layout is not None, f"{plan} sends no whole messages"
            offer = Offer(channel, layout, gradient, gradient)
            (sent,) = messages.send(plan, [offer], done.sums, NO_SURVEY, lambda _: row)
            sent.work.wait()
            sent.settle(counts)
            done.payload_bytes += sent.payload_bytes
            done.dense_bytes += gradient.nbytes
            done.supports.append(sent.step.buffers.places)
            done.senders.append((channel.senders, self.size))
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
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chosen = parse("dense" if asked.way == "dense" else asked.plan)
    kind = WholeRanks if asked.way == "whole" else SimulatedRanks
    ranks = kind(asked.ranks, chosen.compressor or "dense", seed=asked.seed)
    # Unclipped: to clip as an agent does takes what whole messages do not measure here.
    recipe = replace(make(asked.task), clip_norm=None)
    learner, sent = Learner(recipe, asked.ranks, asked.seed, asked.steps, ranks), 0
    for _ in range(asked.steps):
        sent += learner.train(chosen.plan()).exchanged.payload_bytes
    print(
        f"{asked.task} {asked.plan} {asked.way} seed {asked.seed}: held-out loss {learner.evaluate().loss:.4f}, "
        f"{sent / asked.steps:,.0f} bytes of payload a step"
    )


if __name__ == "__main__":
    main()
