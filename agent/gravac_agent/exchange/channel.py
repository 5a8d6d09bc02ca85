"""One bucket on one rank: add the residual, compress, send, update the memory, decode the mean."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gravac import kernels
from gravac.aggregators import Aggregator, BucketAggregator, Draft
from gravac.collectives import Exchange, Transfer
from gravac.compressors import Key
from gravac.compressors.base import kept_count
from gravac.compressors.rows import PayloadRows
from gravac.kernels import LEAST_CF, CandidateBuffers, Scalar, Sifter, on_device
from gravac.kernels.device.rounded import RoundedBuffers, RoundedGroup
from gravac.kernels.device.tiled import TiledBuffers, TiledGroup
from gravac.memories import Bucket, Memory
from gravac_agent.exchange.compensation import (
    NO_SURVEY,
    CompensatedGradient,
    Survey,
    compensate,
    norm_sq,
    unused_elements,
)
from gravac_agent.exchange.overflow import (
    Float16Means,
    clamp_if_larger,
    is_finite,
    largest_summand,
    send_whole,
    update_after_dense,
)
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.raw_mean import RawMeanMeter, SignedSums
from gravac_agent.exchange.sample import SampledBucket
from gravac_agent.exchange.tick import BucketSums, StepSums

log = logging.getLogger("gravac.agent")

MOST_SENDERS = 255
"""Ranks of which it is counted how many an element comes from."""


class EncodedBucket(NamedTuple):
    """What became of a gradient."""

    transfer: Exchange | None
    """The payload in flight; the gradient is unchanged. None: nothing was sent, the gradient's buffer holds all there
    is to send, and the caller must all-reduce it."""
    raw: bool = False
    """Whether the buffer to all-reduce holds the raw gradient, without a residual."""
    unresolved: bool = False
    """Whether the gradient must stay unchanged until ``BucketChannel.resolve``."""


@dataclass(slots=True)
class RankCodecs:
    """What the channels of a rank share: its memory, its aggregators, and work space that they take turns with."""

    memory: Memory
    codecs: tuple[str, ...]
    """The codecs that a plan may name, by number, in the order that the ranks agreed on. The first is the job's."""
    aggregators: tuple[Aggregator, ...]
    """Aggregators by the number of their codec."""
    gradients_stay: bool = False
    """Whether the caller leaves gradients in their buffers until ``resolve``. Then the memory needs only one buffer."""
    cuts: bool = field(default_factory=bool, init=False)
    """Whether steps are clipped, so that a memory should keep the residual from before a step. Equal on all ranks."""
    unused_everywhere: Callable[[], frozenset[str]] | None = None
    """Returns the parameters that no rank used in the last backward. None if the trainer uses the mean of all."""
    counts_senders: bool = field(default_factory=bool, init=False)
    """Whether an optimizer wants to know how many ranks sent each element."""
    raw_mean: RawMeanMeter = field(default_factory=RawMeanMeter, init=False)
    candidates: CandidateBuffers = field(default_factory=CandidateBuffers, init=False)
    """Candidates of the bucket that is being encoded."""
    means: Float16Means = field(default_factory=Float16Means, init=False)
    _noted: set[str] = field(default_factory=set, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def note(self, sentence: str) -> None:
        """Put a sentence into the log and the journal. A sentence that was noted before is left out."""
        if sentence not in self._noted:
            self._noted.add(sentence)
            self._notes.append(sentence)

    def pop_notes(self) -> list[str]:
        """Return the sentences that were noted since the last call. Call it between steps."""
        notes, self._notes = self._notes, []
        return notes


class BucketChannel:
    """All that this rank knows of one bucket. ``Channels.channel`` makes it when it first sees the bucket, and makes
    another one when the bucket's parameters change.

    Args:
        bucket: The parameters that its gradients are made of.
        rank: What the rank's channels share.
    """

    def __init__(self, bucket: Bucket, rank: RankCodecs) -> None:
        self.bucket, self._rank = bucket, rank
        self.memory = rank.memory.open(bucket)
        self.routes: list[BucketAggregator | None] = [None] * len(rank.aggregators)
        """What each aggregator knows of the bucket, by the codec's number; None until a plan names it."""
        self.proven = [False] * len(rank.aggregators)
        """Whether all ranks have decoded this bucket, sent with that codec. It is equal on all ranks."""
        self.failures = 0
        """Steps in a row in which encoding failed on this rank."""
        self.dense = False
        """Whether the ranks agreed to send the bucket densely."""
        self.uses_memory = True
        """Whether the error memory takes part. It is equal on all ranks."""
        self.partial = False
        """Whether the last mean is of some elements, and the others wait in memories. It is equal on all ranks."""
        self.senders: Tensor | None = None
        """How many of ``of`` senders each element of the last mean comes from, uint8 of its shape; None: not wanted or
        not known. It is equal on all ranks."""
        self.of = 0
        self._senders: Tensor | None = None  # the room for it
        self._shown: Bucket | None = None  # what ``senders`` is of, where that is not this bucket
        self.message: TiledBuffers | None = None
        """What a device keeps for its whole messages; None before the first one."""
        self.group: TiledGroup | None = None
        """What it keeps for those of the bucket and the next ones together, if the bucket is the first of them."""
        self.rounded: RoundedBuffers | None = None
        self.rounded_group: RoundedGroup | None = None
        """The same, for messages of every element."""
        self.sampled: SampledBucket | None = None
        self.noise: Tensor | None = None
        """What the codec decodes to where p is zero, of this step. It is lost where no rank used the parameter."""
        self._sifter: Sifter | None = None
        self._signs: SignedSums | None = None
        # Whether a transfer holds less than a copy of the gradient, by codec and CF. A memory that works on one buffer
        # needs the gradient until all ranks know whether the step counts. Until then the mean cannot take its place,
        # and the messages that arrived are kept. Those of many ranks, or of a codec that keeps what it sent as a whole
        # tensor, take more room than a second buffer would.
        self._holds_little: dict[tuple[int, float], bool] = {}

    def parts(self) -> Iterator[tuple[str, Tensor | None]]:
        """Yield the parameters of the last mean by name, with the piece of ``senders`` that belongs to each."""
        shown, senders = self._shown or self.bucket, self.senders
        names, numels = shown.names, shown.numels
        if senders is None:
            yield from ((name, None) for name in names)
            return
        own = len(names) * senders.numel() // sum(numels)  # of one row: all rows have the same parameters
        yield from zip(names[:own], senders.split(list(numels[:own])), strict=True)

    def show(self, whole: Bucket, senders: Tensor | None) -> None:
        """Let ``parts`` yield those of a whole bucket, where this channel has a piece of it."""
        self._shown, self.senders = whole, senders

    @property
    def label(self) -> str:
        """The bucket's parameters as text for a message."""
        others = len(self.bucket.names) - 1
        return self.bucket.names[0] + (f" and {others} more parameters" if others else "")

    def encode(
        self, plan: StepPlan, gradient: Tensor, key: Key, sums: StepSums, survey: Survey = NO_SURVEY
    ) -> EncodedBucket:
        """Compress a gradient and issue its collective, or prepare its buffer for a dense all-reduce.

        This rank issues the collectives that the other ranks expect, whatever fails before sending. After a failure it
        sends zeros and keeps everything in the memory. For a non-finite bucket it sends NaN, so that every rank (and a
        GradScaler) sees it. The call may wait for other ranks.

        Args:
            plan: The plan of the step.
            gradient: The trainer's own buffer, shape ``(n,)``, or a sparse gradient. It changes only if the result has
                no transfer.
            key: Seed of the random numbers of this step, bucket and rank.
            sums: Energies and flags of the step. The bucket's are added.
            survey: Gain curve of the step. The bucket's is added if the survey wants one.

        Raises:
            Exception: A collective raised it.
        """
        rank, memory, self.partial, self.senders = self._rank, self.memory, False, None
        if self.dense:
            plan = plan.dense()
        raw = self.sends_raw(plan)  # asked before this step gives the memory a residual
        if not gradient.numel():  # DDP sends parameters without elements too, and codecs need not know them
            return EncodedBucket(None, raw)
        if gradient.is_sparse:
            rank.note(f"Gradients of {self.bucket.names[0]} are sparse: they are not compressed.")
        elif rank.raw_mean.wanted:
            self._signs = rank.raw_mean.add(self._signs, self.bucket.number, gradient)
        own, transfer = BucketSums(), None
        if raw or gradient.is_sparse:
            self._measure_raw(gradient, own, survey)
        else:
            transfer = self._send(plan, gradient, key, own, survey)
        self.failures = self.failures + 1 if own.failed else 0
        sums.add(own)
        if transfer is None:
            return EncodedBucket(None, raw)
        unresolved = memory.unresolved
        if unresolved and (plan.codec, plan.cf) not in self._holds_little:
            self._holds_little[plan.codec, plan.cf] = transfer.held_bytes <= 4 * gradient.numel()
        if self.partial and transfer.of:
            transfer.senders = self.count_senders(transfer.payload.numel, gradient.device, transfer.of)
        return EncodedBucket(transfer, False, unresolved)

    def begin_message(self, plan: StepPlan, gradient: Tensor) -> None:
        """Prepare the memory for a message that a device makes in one piece."""
        rank = self._rank
        self.partial, self.senders = rank.aggregators[plan.codec].leaves_out, None
        self.memory.keeps_before = rank.cuts and self.partial
        self.memory.gradient_stays = rank.gradients_stay and not self.memory.keeps_before
        if rank.raw_mean.wanted:
            self._signs = rank.raw_mean.add(self._signs, self.bucket.number, gradient)

    def begin_raw(self, gradient: Tensor) -> None:
        """Take note of a gradient that is sent as it is and measured elsewhere."""
        self.partial, self.senders, self.failures = False, None, 0
        if self._rank.raw_mean.wanted:
            self._signs = self._rank.raw_mean.add(self._signs, self.bucket.number, gradient)

    def count_senders(self, numel: int, device: torch.device, of: int | None = None) -> Tensor | None:
        """Return where to count who sent each element of the step's mean; None: no optimizer wants to know.

        Args:
            numel: Elements of the mean.
            device: Where it is.
            of: How many senders stand for all that waits; None: the ranks.
        """
        self.of = self._rank.aggregators[0].communicator.size if of is None else of
        if not self._rank.counts_senders or self.of > MOST_SENDERS:
            return None
        if self._senders is None:
            self._senders = torch.empty(numel, device=device, dtype=torch.uint8)
        self.senders = self._senders
        return self.senders

    def sends_raw(self, plan: StepPlan) -> bool:
        """Return whether the next step sends the gradient itself under a plan. It is equal on all ranks."""
        if not self.uses_memory:
            return True
        idle = plan.idle or self.dense
        return idle and not self._rank.memory.transforms and not self.memory.has_residual

    def resolve(self, gradient: Tensor, counts: bool | Tensor) -> None:
        """Keep the residual if the step counts, or undo the step. It never raises.

        Call it while the buffer still holds the gradient.

        Args:
            gradient: The buffer, as it was given to ``encode``.
            counts: Whether the step counts. On a device it is a tensor of shape ``()``, which is not read.
        """
        if not self.uses_memory:
            return
        try:
            self.memory.resolve(gradient, counts)
        except Exception:
            log.exception(
                "the residual of bucket %d is lost: its step could not be undone", self.bucket.number
            )

    def decode(self, transfer: Transfer, buffer: Tensor, in_place: bool) -> bool:
        """Write the mean into the trainer's ``buffer``, and what its format cannot hold into the memory.

        Args:
            transfer: The finished transfer.
            buffer: Shape ``(n,)``.
            in_place: Whether the buffer itself was all-reduced.

        Returns:
            False if the mean is not finite although every rank's part was. This happens in float16 only, so other
            formats are not checked.
        """
        if buffer.dtype != torch.float16 or buffer.is_sparse:
            transfer.mean_into(buffer)
            return True
        if in_place:
            return is_finite(buffer)
        finite, excess = self._rank.means.write(transfer, buffer)
        if excess is not None:
            self.memory.hold_back(excess)
            self._note_overflow(buffer)
        return finite

    def send_whole(self, gradient: Tensor, ranks: int) -> None:
        """Add the whole residual to a gradient that ``ranks`` ranks are about to average densely, in its buffer."""
        self.partial, self.senders = False, None
        self.memory.gradient_stays = False  # the buffer is all-reduced in place, before the tick is read
        send_whole(self.memory, gradient, ranks, self.unused(gradient))

    def unused(self, gradient: Tensor) -> Tensor | None:
        """Return the elements whose residual stays in the memory, bool of shape ``(n,)``; None if there are none."""
        if self._rank.unused_everywhere is None or not self.uses_memory:
            return None
        if not (self._rank.memory.transforms or self.memory.has_residual):
            return None
        return unused_elements(self.bucket, gradient)

    def keep_noise(self, lost: frozenset[str]) -> None:
        """Put the noise of the step into the memory, where no rank used the parameter (``lost``)."""
        noise, self.noise = self.noise, None
        if noise is not None:
            # DDP has used the mean of every parameter that any rank used, so there nothing is lost.
            for name, piece in zip(self.bucket.names, noise.split(list(self.bucket.numels)), strict=True):
                if name not in lost:
                    piece.zero_()
            self.memory.hold_back(noise)

    def _measure_raw(self, gradient: Tensor, own: BucketSums, survey: Survey) -> None:
        """Measure a gradient that is sent as plain DDP sends it. All energies are equal, so each gain is 1."""
        try:
            histogram = kernels.tally(gradient) if survey.wanted and not gradient.is_sparse else None
            sq = norm_sq(gradient) if histogram is None else histogram.energy
            if own.note_finite(sq):
                survey.add(histogram)
            own.sent_sq = own.gradient_sq = own.compensated_sq = own.minimum_sq = own.candidate_sq = sq
        except Exception:
            log.exception("bucket %d could not be measured", self.bucket.number)
            own.failed = True

    def _send(
        self, plan: StepPlan, gradient: Tensor, key: Key, own: BucketSums, survey: Survey
    ) -> Exchange | None:
        """Prepare and send a draft, then update the memory. Return None if the caller must all-reduce the buffer."""
        compensated, finite = None, True
        try:
            compensated, draft = self._prepare(plan, gradient, key, own, survey)
            finite = compensated is not None
        except Exception:
            # The other ranks wait for collectives of the agreed sizes. Issuing none would hang them, and others would
            # abort gloo, so this rank takes part with zeros. In a dense step the buffer still holds the gradient.
            what = "the gradient alone" if plan.cf == 1.0 else "zeros"
            log.exception(
                "compressing bucket %d failed; this rank sends %s in this step", self.bucket.number, what
            )
            own.failed = True
            draft = None if plan.cf == 1.0 else self._blank(plan, gradient, key, 0.0)
        if draft is None:
            return None
        transfer = self._issue(draft, plan, gradient, key, own)
        # If it is not finite, the memory must stay between its two calls: ``rollback`` knows an overflow by that.
        if finite:
            try:
                self._update_memory(gradient, transfer, compensated, own)
            except Exception:  # the residual stays as it was before the step
                log.exception("the error memory failed on bucket %d", self.bucket.number)
                own.failed = True
        payload = transfer.payload
        self.partial = payload.support is not None
        if payload.support is None:  # what it decodes to is as large as the gradient
            payload.forget()
            self.partial = isinstance(payload, PayloadRows) and payload.rows[0].support is not None
        else:
            kept = payload.decoded
            kept.values = kept.energy = kept.inner = None
        return transfer

    def _issue(self, draft: Draft, plan: StepPlan, gradient: Tensor, key: Key, own: BucketSums) -> Exchange:
        """Send a draft. Where that fails before its first collective, send zeros: later ones would meet wrong ones."""
        ends = self._rank.aggregators[plan.codec].communicator
        issued = ends.issued
        try:
            return draft.send(plan.cf)
        except Exception:
            if ends.issued != issued:
                raise
            log.exception("sending bucket %d failed; this rank sends zeros in this step", self.bucket.number)
            own.failed = True
            return self._blank(plan, gradient, key, 0.0).send(plan.cf)

    def _prepare(
        self, plan: StepPlan, gradient: Tensor, key: Key, own: BucketSums, survey: Survey
    ) -> tuple[CompensatedGradient | None, Draft | None]:
        """Add the residual, measure the sum, and compress it to the CFs that the plan measures.

        Returns:
            Gradient + residual, or None if it is not finite; and the draft to send, or None if the buffer holds all
            there is to send and the caller must all-reduce it.
        """
        measured, dense, rank = plan.measured, plan.cf == 1.0, self._rank
        unused = None if rank.unused_everywhere is None else self.unused(gradient)
        # The memory works on one buffer only if the gradient can undo the step, and not if part of p was withheld.
        cuts = rank.cuts and rank.aggregators[plan.codec].leaves_out
        stays = rank.gradients_stay and unused is None and not cuts
        self.memory.keeps_before = cuts
        self.memory.gradient_stays = stays and self._holds_little.get((plan.codec, plan.cf), True)
        # Encoding takes as long as the passes over the gradient that it makes. So the pass that adds the residual also
        # finds what the codec needs to know of the magnitudes: candidates by the last step's threshold, which is
        # quickest, or a histogram, if there is no threshold yet or the survey needs one anyway.
        ranked = bool(measured) and rank.aggregators[plan.codec].uses_histogram(gradient)
        sifter = (
            self._sifter_of(gradient.numel(), measured[0]) if ranked and measured[0] >= LEAST_CF else None
        )
        count = survey.wanted or (ranked and sifter is None)
        compensated = compensate(
            self.memory, self.bucket, gradient, dense=dense, count=count, sifter=sifter, unused=unused
        )
        if not own.note_finite(compensated.gradient_sq, compensated.sq):
            # Not by way of the codec, which might leave just that element out. A dense step sends the gradient as it
            # is. If only the residual has overflown, that is finite, and the tick says that the step does not count.
            return None, None if dense else self._blank(plan, gradient, key, math.nan)
        if survey.wanted:
            survey.add(compensated.histogram)
        draft, energies = None, [compensated.sq]
        limit = largest_summand(gradient.dtype, rank.aggregators[0].communicator.size)
        clamped = None if limit == math.inf else self._clamped(gradient, compensated, limit, dense)
        if measured:  # in a dense step, too: it measures the gain before anything is sent at a new CF
            x, magnitudes = (compensated.p, compensated.magnitudes) if clamped is None else (clamped, None)
            draft = self.route(plan).prepare(x, measured, key, gradient.dtype, magnitudes)
            energies = [draft.kept_energy(cf) for cf in measured]
        own.gradient_sq, own.compensated_sq = compensated.gradient_sq, compensated.sq
        own.minimum_sq, own.candidate_sq = energies[0], energies[-1]
        if unused is not None:
            self._add_residual(own, compensated.withheld_sq, 0.0)
        if not dense:
            return compensated, draft
        # Dense: the draft has only measured. All of p is sent, so the memory keeps nothing but what was clamped.
        own.sent_sq = compensated.sq if clamped is None else kernels.energy(clamped)
        residual = update_after_dense(self.memory, compensated.p, clamped, gradient.dtype)
        if residual is not None:
            self._add_residual(own, kernels.energy(residual), kernels.inner(residual, gradient))
        # Last, because everything above reads the raw gradient, and a failure must leave it in the buffer.
        gradient.copy_(compensated.p if clamped is None else clamped)
        return compensated, None

    def _clamped(
        self, gradient: Tensor, compensated: CompensatedGradient, limit: float, dense: bool
    ) -> Tensor | None:
        """Return gradient + residual, clamped to what the gradient's format can carry; None if all of it fits."""
        sq = compensated.sq
        if compensated.p is gradient:  # without a memory, what is clamped would be lost
            return None
        if isinstance(sq, Tensor):  # cannot be read; the tick finds a dense sum that overflows
            return None if dense else compensated.p.clamp(-limit, limit)
        clamped = clamp_if_larger(compensated.p, sq, limit)
        if clamped is not None:
            self._note_overflow(gradient)
        return clamped

    def _note_overflow(self, gradient: Tensor) -> None:
        self._rank.note(
            f"Gradient + residual leaves {gradient.dtype}, which ends at {torch.finfo(gradient.dtype).max:,.0f}: what "
            "does not fit stays in the error memory. A smaller loss scale or compression factor avoids it."
        )

    def _sifter_of(self, numel: int, cf: float) -> Sifter:
        """Return what finds as many elements as a CF keeps."""
        k, sifter = kept_count(numel, cf), self._sifter
        if sifter is None or (sifter.k, sifter.numel) != (k, numel):
            sifter = self._sifter = Sifter(k, numel, self._rank.candidates)
        return sifter

    def _update_memory(
        self, gradient: Tensor, transfer: Exchange, compensated: CompensatedGradient | None, own: BucketSums
    ) -> None:
        """Remove what this rank sent from its residual, while the transfer is in flight.

        ``compensated`` is None if preparing failed.
        """
        codec, payload = transfer.codec, transfer.payload
        sent_sq = codec.energy(payload)
        if not own.note_finite(sent_sq):  # infinity subtracted from p could not be added back
            return
        own.sent_sq = sent_sq
        if compensated is not None and compensated.unused is not None and payload.support is None:
            noise = torch.where(compensated.unused, codec.decoded(payload), 0.0)
            # On a device, what DDP used cannot be read in time.
            if not on_device(noise) and bool(noise.any()):
                self.noise = noise
        if compensated is None or not compensated.full_residual or payload.support is None:
            residual = self.memory.update(codec, payload)
            if residual is not None:
                self._add_residual(own, kernels.energy(residual), kernels.inner(residual, gradient))
            return
        # For e = p - s, ‖e‖² = ‖p‖² - 2⟨p, s⟩ + ‖s‖² and ⟨e, g⟩ = ⟨p, g⟩ - ⟨s, g⟩. The payload s has few elements, so
        # this saves two passes over e. It must come before ``update``, which makes e of p in the same buffer.
        residual_sq = compensated.sq - 2.0 * codec.inner(payload, compensated.p) + sent_sq
        dot = kernels.inner(compensated.p, gradient) if compensated.dot is None else compensated.dot
        residual_dot = dot - codec.inner(payload, gradient)
        if self.memory.update(codec, payload) is not None:
            # A difference of rounded energies may be less than 0.
            sq = residual_sq.clamp(min=0.0) if isinstance(residual_sq, Tensor) else max(0.0, residual_sq)
            self._add_residual(own, sq, residual_dot)

    def _add_residual(self, own: BucketSums, sq: Scalar, dot_gradient: Scalar) -> None:
        # In units of gradients: a memory with momentum keeps their sums, which are 1 / (1 - m) times larger.
        share = 1.0 / self._rank.memory.amplification
        own.residual_sq += sq * share**2
        own.residual_dot_gradient += dot_gradient * share

    def route(self, plan: StepPlan) -> BucketAggregator:
        """Return what the plan's aggregator knows of the bucket."""
        route = self.routes[plan.codec]
        if route is None:
            route = self.routes[plan.codec] = self._rank.aggregators[plan.codec].open(self.bucket)
        return route

    def _blank(self, plan: StepPlan, gradient: Tensor, key: Key, value: float) -> Draft:
        return self.route(plan).blank(plan.cf, key, gradient.dtype, gradient.device, value)
