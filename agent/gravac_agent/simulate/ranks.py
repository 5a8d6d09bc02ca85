"""The ranks of a simulated job: each has its own encoder and error memory, and they exchange in this process."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gravac import aggregators, memories
from gravac.collectives import Communicator
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Key
from gravac.memories import Bucket, Memory
from gravac_agent.exchange.compensation import Survey
from gravac_agent.exchange.encoder import Compressed, Encoder
from gravac_agent.exchange.plan import Plan
from gravac_agent.exchange.tick import StepSums

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What one exchange did.

    Attributes:
        sums: Energies and flags, summed over ranks.
        payload_bytes: Handed to collectives by each rank.
        sent_bytes: Put on its link by each rank.
        dense_bytes: What plain DDP would have handed over on each rank.
        survey: Gain curve of all ranks; None where it was not wanted.
    """

    sums: StepSums
    payload_bytes: int
    sent_bytes: int
    dense_bytes: int
    survey: Survey


class SimulatedRanks:
    """Encoders of ``size`` ranks that exchange gradients as the agents of a job do, with the same numbers.

    Args:
        size: Ranks.
        compressor: Codec or aggregator by name, as ``Agent(compressor=…)``.
        memory: Error memory by name.
        collective: Collective by name.
        elements: Elements of the whole model.
        seed: Seed of codecs that draw random numbers.
    """

    def __init__(
        self,
        size: int,
        compressor: str,
        memory: str = "residual",
        collective: str = "auto",
        elements: int | None = None,
        seed: int = 0,
    ) -> None:
        self.size, self.seed = size, seed
        self._world = SimulatedWorld(size)
        self._communicators = [self._world.communicator(rank) for rank in range(size)]
        self.encoders = [
            Encoder(
                compressor,
                aggregators.build(compressor, each, collective, None, elements),
                _memory(memory, size),
            )
            for each in self._communicators
        ]

    def exchange(
        self,
        buckets: Sequence[Bucket],
        gradients: Sequence[Sequence[Tensor]],
        plan: Plan,
        step: int,
        surveyed: bool = False,
    ) -> Exchanged:
        """Replace rank 0's gradients by the mean over ranks; the other ranks' buffers are used up.

        Args:
            buckets: The buckets of a step.
            gradients: By rank and bucket, flat.
            plan: What to send.
            step: Its number, for random numbers.
            surveyed: Measure the gain curve.
        """

        def each(communicator: Communicator) -> tuple[StepSums, int, int, int, Survey]:
            return self._rank(communicator, buckets, gradients[communicator.rank], plan, step, surveyed)

        found = self._world.run(each)
        total = StepSums(*(sum(column) for column in zip(*(one[0].values() for one in found), strict=True)))
        counts = not total.nonfinite
        for encoder in self.encoders:
            if counts:
                if not total.failed:
                    figures = [each.aggregator.figures() for each in self.encoders]
                    encoder.aggregator.learn(
                        [sum(column) / self.size for column in zip(*figures, strict=True)]
                    )
        for encoder in self.encoders:
            encoder.commit() if counts else encoder.rollback()
        survey = found[0][4]
        for one in found[1:]:
            if survey.curve is not None and one[4].curve is not None:
                survey.curve = survey.curve + one[4].curve
        return Exchanged(total, found[0][1], found[0][2], found[0][3], survey)

    def _rank(
        self,
        communicator: Communicator,
        buckets: Sequence[Bucket],
        gradients: Sequence[Tensor],
        plan: Plan,
        step: int,
        surveyed: bool,
    ) -> tuple[StepSums, int, int, int, Survey]:
        rank = communicator.rank
        encoder, sums, survey = self.encoders[rank], StepSums(), Survey(surveyed)
        payload = sent = dense = 0
        for bucket, gradient in zip(buckets, gradients, strict=True):
            key = Key(self.seed, step, bucket.number, rank)
            dense += gradient.nbytes
            encoded = encoder.encode(plan, bucket, gradient, key, sums, survey)
            if isinstance(encoded, Compressed):
                encoded.transfer.work.wait()
                payload += encoded.transfer.payload_bytes
                sent += encoded.transfer.sent_bytes
                if rank == 0:
                    encoder.decode(bucket, encoded.transfer, gradient, in_place=False)
            else:
                payload += gradient.nbytes
                sent += 2 * gradient.nbytes * (self.size - 1) // self.size
                communicator.sum(gradient)
                gradient.div_(self.size)
        return sums, payload, sent, dense, survey


def _memory(text: str, size: int) -> Memory:
    memory = memories.build(text)
    memory.world_size = size
    return memory


def buckets_of(module: nn.Module, megabytes: float) -> list[tuple[Bucket, list[nn.Parameter]]]:
    """Group the trainable parameters into buckets as DDP does: in reverse order, each of about ``megabytes``."""
    found: list[tuple[Bucket, list[nn.Parameter]]] = []
    group: list[tuple[str, nn.Parameter]] = []
    size = 0.0
    trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    for at, (name, parameter) in enumerate(reversed(trained)):
        group.append((name, parameter))
        size += parameter.numel() * parameter.element_size()
        if size >= megabytes * MEGABYTE or at == len(trained) - 1:
            names, members = tuple(name for name, _ in group), [one for _, one in group]
            bucket = Bucket(
                len(found),
                names,
                tuple(one.numel() for one in members),
                tuple(tuple(one.shape) for one in members),
            )
            found.append((bucket, members))
            group, size = [], 0.0
    return found


def flat_gradients(grouped: Sequence[tuple[Bucket, list[nn.Parameter]]]) -> list[Tensor]:
    """Copy the parameters' gradients into one flat tensor a bucket; a missing gradient counts as zero."""
    return [
        torch.cat([torch.zeros(one.numel()) if one.grad is None else one.grad.flatten() for one in members])
        for _, members in grouped
    ]
