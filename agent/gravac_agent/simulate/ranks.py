"""The ranks of a simulated job: each has its own encoder and error memory, and they exchange in this process."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gravac import aggregators, memories
from gravac.collectives import Communicator
from gravac.collectives.cost import ring_bytes
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Key
from gravac.memories import Bucket, Memory
from gravac_agent.exchange.compensation import Survey
from gravac_agent.exchange.encoder import Compressed, Encoder, norm_sq
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
        survey: Gain curve of all ranks, where it was wanted.
        mean_sq: ‖mean of the raw gradients‖²; None where residuals or a codec took part.
        raw_mean: What the ranks' ``RawMeanMeter`` measured, summed over ranks.
    """

    sums: StepSums
    payload_bytes: int
    sent_bytes: int
    dense_bytes: int
    survey: Survey
    mean_sq: float | None
    raw_mean: tuple[float, ...] = ()


class SimulatedRanks:
    """Encoders of ``size`` ranks that exchange gradients as the agents of a job do, with the same numbers.

    Args:
        size: Ranks.
        compressor: Codec or aggregator by name, as ``Agent(compressor=…)``.
        memory: Error memory by name.
        collective: Collective by name.
        elements: Elements of the whole model.
        seed: Seed of codecs that draw random numbers.
        others: Codecs besides ``compressor`` that a plan may name.
    """

    def __init__(
        self,
        size: int,
        compressor: str,
        memory: str = "residual",
        collective: str = "auto",
        elements: int | None = None,
        seed: int = 0,
        others: Sequence[str] = (),
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

        def each(communicator: Communicator) -> Exchanged:
            return self._rank(communicator, buckets, gradients[communicator.rank], plan, step, surveyed)

        found = self._world.run(each)
        first = found[0]
        total = StepSums(*(sum(column) for column in zip(*(one.sums.values() for one in found), strict=True)))
        if total.nonfinite:
            for encoder in self.encoders:
                encoder.rollback()
        else:
            self._learn(plan, failed=total.failed > 0)
            for encoder in self.encoders:
                encoder.commit()
        survey = first.survey
        for one in found[1:]:
            if survey.curve is not None and one.survey.curve is not None:
                survey.curve = survey.curve + one.survey.curve
        numbers = [encoder.raw_mean.pop() for encoder in self.encoders]
        return Exchanged(
            total,
            first.payload_bytes,
            first.sent_bytes,
            first.dense_bytes,
            survey,
            first.mean_sq,
            tuple(sum(column) for column in zip(*numbers, strict=True)),
        )

    def _learn(self, plan: Plan, failed: bool) -> None:
        """Pass the means over ranks of what the codecs counted to all of them, as the tick does."""
        figures = [each.aggregator_of(plan).figures() for each in self.encoders]
        if not failed and figures[0]:
            means = [sum(column) / self.size for column in zip(*figures, strict=True)]
            for encoder in self.encoders:
                encoder.aggregator_of(plan).learn(means)

    def _rank(
        self,
        communicator: Communicator,
        buckets: Sequence[Bucket],
        gradients: Sequence[Tensor],
        plan: Plan,
        step: int,
        surveyed: bool,
    ) -> Exchanged:
        rank = communicator.rank
        encoder, sums, survey = self.encoders[rank], StepSums(), Survey(surveyed)
        payload = sent = dense = 0
        mean_sq: float | None = 0.0
        for bucket, gradient in zip(buckets, gradients, strict=True):
            key = Key(self.seed, step, bucket.number, rank)
            dense += gradient.nbytes
            encoded = encoder.encode(plan, bucket, gradient, key, sums, survey)
            if isinstance(encoded, Compressed):
                encoded.transfer.work.wait()
                payload += encoded.transfer.payload_bytes
                sent += encoded.transfer.sent_bytes
                mean_sq = None
                if rank == 0:
                    encoder.decode(bucket, encoded.transfer, gradient, in_place=False)
            else:
                payload += gradient.nbytes
                sent += ring_bytes(gradient.nbytes, self.size)
                gradient.div_(self.size)
                communicator.sum(gradient)
                raw = encoded.raw and mean_sq is not None
                mean_sq = mean_sq + norm_sq(gradient) if raw and mean_sq is not None else None
        return Exchanged(sums, payload, sent, dense, survey, mean_sq)


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
