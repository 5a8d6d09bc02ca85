"""The ranks of a simulated job: each has its own channels and error memory, and they exchange in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from gravac import aggregators, memories
from gravac.collectives import AUTO, Communicator, Network
from gravac.collectives.cost import ring_bytes
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac.signals.spectrum import Curve
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import Survey, norm_sq
from gravac_agent.exchange.plan import StepPlan
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
        curve: Gain curve of all ranks; None where the step was not surveyed.
        mean_sq: ‖mean of the raw gradients‖²; None where residuals or a codec took part.
        raw_mean: What the ranks' ``RawMeanMeter`` measured, summed over ranks.
        supports: Positions that were sent, by bucket and rank; None: all.
        senders: How many senders each element of the mean comes from, and of how many, by bucket; None: not counted.
    """

    sums: StepSums
    payload_bytes: int
    sent_bytes: int
    dense_bytes: int
    curve: Curve | None
    mean_sq: float | None
    raw_mean: tuple[float, ...] = ()
    supports: tuple[tuple[Tensor | None, ...], ...] = field(default=(), compare=False)
    senders: tuple[tuple[Tensor | None, int], ...] = field(default=(), compare=False)


@dataclass(slots=True)
class OfRank:
    """What one rank did in one exchange."""

    survey: Survey
    sums: StepSums = field(default_factory=StepSums)
    payload_bytes: int = 0
    sent_bytes: int = 0
    dense_bytes: int = 0
    mean_sq: float | None = 0.0
    supports: list[Tensor | None] = field(default_factory=list)
    senders: list[tuple[Tensor | None, int]] = field(default_factory=list)


class SimulatedRanks:
    """Channels of ``size`` ranks that exchange gradients as the agents of a job do, with the same numbers.

    Args:
        size: Ranks.
        compressor: Codec or aggregator by name, as ``Agent(compressor=…)``.
        memory: Error memory by name.
        collective: Collective by name.
        network: By which ``auto`` chooses a collective, as agents do by a measured one; None: payloads are gathered.
        elements: Elements of the whole model.
        aged: Whether the optimizer ages, by which ``auto`` chooses a collective, too; see ``OneShot``.
        seed: Seed of codecs that draw random numbers.
        others: Codecs besides ``compressor`` that a plan may name, by their number from 1 on.
    """

    def __init__(
        self,
        size: int,
        compressor: str,
        memory: str = "residual",
        *,
        collective: str = AUTO,
        network: Network | None = None,
        elements: int | None = None,
        aged: bool = False,
        seed: int = 0,
        others: Sequence[str] = (),
    ) -> None:
        self.size, self.seed = size, seed
        self._world = SimulatedWorld(size)
        self.channels = []
        for rank in range(size):
            build = partial(
                aggregators.build,
                group=self._world.communicator(rank),
                collective=collective,
                network=network,
                elements=elements,
                aged=aged,
            )
            kept = memories.build(memory)
            kept.world_size = size
            every = (compressor, *others)
            self.channels.append(Channels(kept, every, tuple(map(build, every))))

    def exchange(
        self,
        buckets: Sequence[Bucket],
        gradients: Sequence[Sequence[Tensor]],
        plan: StepPlan | Sequence[StepPlan],
        step: int,
        surveyed: bool = False,
    ) -> Exchanged:
        """Replace rank 0's gradients by the mean over ranks; the other ranks' buffers are used up.

        Args:
            buckets: The buckets of a step.
            gradients: By rank and bucket, flat.
            plan: What to send; or one plan for each bucket, all with the same codec.
            step: Its number, for random numbers.
            surveyed: Measure the gain curve.

        Raises:
            ValueError: The plans of the buckets have different codecs.
        """
        plans = [plan] * len(buckets) if isinstance(plan, StepPlan) else plan
        if len({plan.codec for plan in plans}) > 1:
            raise ValueError(
                f"plan={plans} names several codecs, and a step has one: give each bucket the same codec"
            )

        def each(communicator: Communicator) -> OfRank:
            return self._rank(communicator, buckets, gradients[communicator.rank], plans, step, surveyed)

        found = self._world.run(each)
        first = found[0]
        sums = StepSums(*(sum(column) for column in zip(*(one.sums.values() for one in found), strict=True)))
        if sums.nonfinite:
            for channels in self.channels:
                channels.rollback()
        else:
            self._learn(plans[0], failed=sums.failed > 0)
            for channels in self.channels:
                channels.commit()
        curves = [one.survey.curve for one in found]
        numbers = [channels.raw_mean.pop() for channels in self.channels]
        return Exchanged(
            sums,
            first.payload_bytes,
            first.sent_bytes,
            first.dense_bytes,
            _sum_of(curves),
            first.mean_sq,
            tuple(sum(column) for column in zip(*numbers, strict=True)),
            tuple(zip(*(one.supports for one in found), strict=True)),
            tuple(first.senders),
        )

    def _learn(self, plan: StepPlan, failed: bool) -> None:
        """Pass the means over ranks of what the codecs counted to all of them, as the tick does."""
        figures = [each.aggregators[plan.codec].local_statistics() for each in self.channels]
        if not failed and figures[0]:
            means = [sum(column) / self.size for column in zip(*figures, strict=True)]
            for channels in self.channels:
                channels.aggregators[plan.codec].apply_mean_statistics(means)

    def _rank(
        self,
        communicator: Communicator,
        buckets: Sequence[Bucket],
        gradients: Sequence[Tensor],
        plans: Sequence[StepPlan],
        step: int,
        surveyed: bool,
    ) -> OfRank:
        rank, channels = communicator.rank, self.channels[communicator.rank]
        done = OfRank(Survey(surveyed))
        for bucket, gradient, plan in zip(buckets, gradients, plans, strict=True):
            key = Key(self.seed, step, bucket.number, rank)
            done.dense_bytes += gradient.nbytes
            channel = channels.begin(bucket, plan)
            encoded = channel.encode(plan, gradient, key, done.sums, done.survey)
            if (transfer := encoded.transfer) is not None:
                transfer.work.wait()
                done.payload_bytes += transfer.payload_bytes
                done.sent_bytes += transfer.sent_bytes
                done.supports.append(transfer.payload.support)
                done.senders.append((channel.senders, channel.of))
                done.mean_sq = None
                if rank == 0:  # every rank would decode the same
                    channel.decode(transfer, gradient, in_place=False)
                continue
            done.supports.append(None)
            done.senders.append((None, 1))
            done.payload_bytes += gradient.nbytes
            done.sent_bytes += ring_bytes(gradient.nbytes, self.size)
            gradient.div_(self.size)
            communicator.sum(gradient)
            if done.mean_sq is not None:
                done.mean_sq = done.mean_sq + float(norm_sq(gradient)) if encoded.raw else None
        return done


def _sum_of(curves: Sequence[Curve | None]) -> Curve | None:
    """Return the gain curve of all ranks; None unless each has one."""
    total = None
    for curve in curves:
        if curve is None:
            return None
        total = curve if total is None else total + curve
    return total


def buckets_of(module: nn.Module, megabytes: float) -> list[tuple[Bucket, list[nn.Parameter]]]:
    """Group the trainable parameters into buckets as DDP does: in reverse order, each of about ``megabytes``."""
    layout: list[list[str]] = []
    space = 0.0
    for name, parameter in reversed(list(module.named_parameters())):
        if not parameter.requires_grad:
            continue
        if space <= 0.0:
            layout.append([])
            space = megabytes * MEGABYTE
        layout[-1].append(name)
        space -= parameter.numel() * parameter.element_size()
    return buckets_in(module, layout)


def buckets_in(module: nn.Module, layout: Sequence[Sequence[str]]) -> list[tuple[Bucket, list[nn.Parameter]]]:
    """Group parameters into buckets by their names, bucket by bucket."""
    known = dict(module.named_parameters())
    found = []
    for number, names in enumerate(layout):
        members = [known[name] for name in names]
        numels, shapes = (member.numel() for member in members), (tuple(member.shape) for member in members)
        found.append((Bucket(number, tuple(names), tuple(numels), tuple(shapes)), members))
    return found


def layers_of(module: nn.Module) -> list[list[str]]:
    """Return a bucket for each trainable parameter, as ``buckets_in`` reads them, in the order of DDP's."""
    return [[name] for name, one in reversed(list(module.named_parameters())) if one.requires_grad]


def is_layer(bucket: Bucket) -> bool:
    """Return whether a bucket of one parameter is a layer: it has two dimensions or more."""
    return len(bucket.shapes[0]) > 1
