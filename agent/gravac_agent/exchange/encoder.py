"""One bucket of one step on one rank: add the residual, compress, send, update the memory, and sum the energies."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from gravac import kernels
from gravac.aggregators import Aggregator, Draft
from gravac.collectives import Exchange, InPlace, Transfer
from gravac.compressors import Compressor, Key
from gravac.compressors.base import kept_count
from gravac.kernels import LEAST_CF, CandidateBuffers, Scalar, Sifter, on_device
from gravac.memories import Bucket, Memory
from gravac_agent.exchange.compensation import (
    NO_SURVEY,
    CompensatedGradient,
    Survey,
    at_least_zero,
    compensate,
    norm_sq,
    unused_elements,
)
from gravac_agent.exchange.failing_buckets import FailingBuckets, bucket_label
from gravac_agent.exchange.overflow import (
    Float16Means,
    clamp_if_larger,
    has_room,
    is_finite,
    largest_summand,
    update_after_dense,
)
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.raw_mean import RawMeanMeter
from gravac_agent.exchange.tick import StepSums

log = logging.getLogger("gravac.agent")


@dataclass(slots=True)
class Compressed:
    """The bucket's payload was sent. The gradient is unchanged."""

    transfer: Exchange
    unsettled: bool = False
    """Whether the gradient must stay unchanged until ``Encoder.resolve``."""


@dataclass(slots=True)
class Uncompressed:
    """Nothing was sent. The gradient's buffer holds all there is to send, and the caller must all-reduce it."""

    raw: bool
    """Whether the buffer holds the raw gradient, without a residual."""


EncodedBucket = Compressed | Uncompressed


class HeldBytes:
    """Compares what a transfer holds until the step ends with the copy of the gradient that it saves.

    A memory that works on one buffer needs the gradient until all ranks know whether the step counts. Until then the
    mean cannot take the gradient's place, so the messages that arrived must be kept. At a high CF they are small. Those
    of many ranks, or of a codec that keeps what it sent as a whole tensor, take more room than a second buffer would.
    Each bucket, codec and CF is measured once, against a float32 copy of the gradient.
    """

    def __init__(self) -> None:
        self._small: dict[tuple[int, tuple[str, ...], float], bool] = {}

    def is_small(self, bucket: Bucket, aggregator: Aggregator, cf: float) -> bool:
        """Return whether the bucket's transfers hold less than the copy; True until they were measured."""
        return self._small.get((id(aggregator), bucket.names, cf), True)

    def note(self, bucket: Bucket, aggregator: Aggregator, cf: float, transfer: Transfer) -> None:
        """Measure a transfer of the bucket that was sent at this CF, the first time."""
        key = id(aggregator), bucket.names, cf
        if key not in self._small:
            self._small[key] = _held_bytes(transfer) <= 4 * sum(bucket.numels)


def _held_bytes(transfer: Transfer) -> int:
    """Return the bytes of all tensors that a transfer refers to, without those of its codec."""
    # By storage: views of one message would count it several times.
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(transfer)
    }
    return sum(storage.nbytes() for storage in storages.values())


def _tensors(thing: object) -> Iterator[Tensor]:
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        yield from _tensors(tuple(thing.values()))
    elif isinstance(thing, list | tuple):
        for one in thing:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, Compressor):
        yield from _tensors([getattr(thing, field.name) for field in dataclasses.fields(thing)])


@dataclass(slots=True)
class Encoder:
    """Encodes and decodes buckets, with the aggregator that a plan names and one error memory for all of them."""

    compressor: str
    """The job's compressor, as the text that ``aggregator`` was built from."""
    aggregator: Aggregator
    memory: Memory
    others: dict[str, Aggregator] = field(default_factory=dict)
    """Aggregators of the other codecs that a decision may name, by text, in the order that the ranks agreed on."""
    gradients_stay: bool = False
    """Whether the caller leaves gradients in their buffers until ``resolve``. Then the memory needs only one buffer."""
    unused_everywhere: Callable[[], frozenset[str]] | None = None
    """Returns the parameters that no rank used in the last backward. None if the trainer uses the mean of all."""
    raw_mean: RawMeanMeter = field(default_factory=RawMeanMeter, init=False)
    failing: FailingBuckets = field(default_factory=FailingBuckets, init=False)
    _sifters: dict[int, Sifter] = field(default_factory=dict, init=False)
    """By the bucket's number. Each finds as many elements as the smallest CF of the running step keeps."""
    _candidate_buffers: CandidateBuffers = field(default_factory=CandidateBuffers, init=False)
    """Candidates of the bucket that is being encoded. The sifters share it, as each bucket uses its own at once."""
    _means: Float16Means = field(default_factory=Float16Means, init=False)
    _held: HeldBytes = field(default_factory=HeldBytes, init=False)
    _noise: list[tuple[Bucket, Tensor]] = field(default_factory=list, init=False)
    """What the codec decodes to where p is zero, by bucket. It is lost where no rank used the parameter."""
    _in_use: int = field(default=0, init=False)
    """Number of the running step's codec."""
    _noted: set[str] = field(default_factory=set, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs that a plan may name, by number."""
        return (self.compressor, *self.others)

    @property
    def aggregators(self) -> tuple[Aggregator, ...]:
        """The aggregators by their codec's number."""
        return (self.aggregator, *self.others.values())

    def aggregator_of(self, plan: StepPlan) -> Aggregator:
        """Return the aggregator of the plan's codec."""
        return self.aggregators[plan.codec] if plan.codec else self.aggregator

    def learning_codecs(self) -> frozenset[int]:
        """Return the numbers of the codecs that must learn from a dense step before they send at a new CF."""
        return frozenset(
            number for number, aggregator in enumerate(self.aggregators) if aggregator.local_statistics()
        )

    def encode(
        self,
        plan: StepPlan,
        bucket: Bucket,
        gradient: Tensor,
        key: Key,
        sums: StepSums,
        survey: Survey = NO_SURVEY,
    ) -> EncodedBucket:
        """Compress a bucket and issue its collective, or prepare its buffer for a dense all-reduce.

        This rank issues the collectives that the other ranks expect, whatever fails before sending. After a failure it
        sends zeros and keeps everything in the memory. For a non-finite bucket it sends NaN, so that every rank (and a
        GradScaler) sees it. The call may wait for other ranks.

        Args:
            plan: The plan of the step.
            bucket: Which parameters the gradient is made of.
            gradient: DDP's own buffer, shape ``(n,)``, or a sparse gradient. It changes only if the result is
                ``Uncompressed``.
            key: Seed of the random numbers of this step, bucket and rank.
            sums: Energies and flags of the step. The bucket's are added.
            survey: Gain curve of the step. The bucket's is added if the survey wants one.

        Raises:
            Exception: A collective raised it.
        """
        self._in_use = plan.codec
        if bucket.number == 0 and self.unused_everywhere is not None:
            # A backward that ended in an exception has no end of step, which would have dropped what was withheld in
            # it. This step would add to that.
            self.rollback()
        plan, failed_before = self.failing.plan_for(bucket, plan), sums.failed
        raw = self.passes_through(plan, bucket)  # asked before this step gives the memory a residual
        if not gradient.numel():  # DDP sends parameters without elements too, and codecs need not know them
            return Uncompressed(raw)
        if gradient.is_sparse:
            self._count_sparse(bucket, gradient, sums)
            return Uncompressed(raw)
        if self.raw_mean.wanted:
            self.raw_mean.add(bucket, gradient)
        sums.failed = 0  # to see whether this bucket fails
        aggregator = self.aggregator_of(plan)
        unused = self.unused(bucket, gradient)
        # The memory works on one buffer only if the gradient can undo the step. It cannot if part of p was withheld.
        stays = self.gradients_stay and unused is None
        self.memory.gradient_stays = stays and self._held.is_small(bucket, aggregator, plan.cf)
        transfer = self._send(plan, bucket, gradient, key, sums, survey, unused)
        self.failing.record(bucket, failed=sums.failed > 0)
        sums.failed = max(failed_before, sums.failed)
        if transfer is None:
            return Uncompressed(raw)
        unsettled = self.memory.unsettled(bucket)
        if unsettled:
            self._held.note(bucket, aggregator, plan.cf, transfer)
        return Compressed(transfer, unsettled)

    def resolve(
        self, bucket: Bucket, transfer: Transfer | None, gradient: Tensor, counts: bool | Tensor
    ) -> None:
        """Keep a bucket's residual if the step counts, or undo the step. It never raises.

        Call it while the buffer still holds the gradient.

        Args:
            bucket: Which parameters the gradient is made of.
            transfer: The transfer of the bucket; None if ``encode`` raised.
            gradient: DDP's own buffer, as it was given to ``encode``.
            counts: Whether the step counts. On a device it is a tensor of shape ``()``, which is not read.
        """
        if not self.failing.keeps_memory(bucket):
            return
        try:
            if transfer is None or isinstance(transfer, InPlace):
                self.memory.resolve(bucket, gradient, counts)
            else:
                sent = cast("Exchange", transfer)
                self.memory.resolve(bucket, gradient, counts, sent.codec, sent.payload)
        except Exception:
            log.exception("the residual of bucket %d is lost: its step could not be undone", bucket.number)

    def is_finite(self, transfer: Transfer, buffer: Tensor) -> bool:
        """Return whether the mean is finite, before ``decode`` writes it. Only float16 is checked."""
        return has_room(buffer.dtype) or self._means.is_finite(transfer, buffer)

    def fits(self, transfer: Transfer, buffer: Tensor, in_place: bool) -> Tensor | None:
        """Return whether the mean fits a buffer on a device, bool of shape ``()``; None if it always does."""
        if buffer.is_sparse or not buffer.numel() or has_room(buffer.dtype):
            return None
        if in_place:
            return torch.isfinite(torch.linalg.vector_norm(buffer, math.inf))
        return self._means.fits(transfer, buffer)

    def decode_unread(self, transfer: Transfer, buffer: Tensor, in_place: bool) -> None:
        """Write the mean into a buffer on a device. What float16 cannot hold is not kept: see ``fits``."""
        if buffer.is_sparse or has_room(buffer.dtype):
            transfer.mean_into(buffer)
        elif not in_place:
            self._means.write_unread(transfer, buffer)

    def decode(self, bucket: Bucket, transfer: Transfer, buffer: Tensor, in_place: bool) -> bool:
        """Write the mean into DDP's ``buffer``, and what its format cannot hold into the memory.

        Args:
            bucket: Which parameters the buffer is made of.
            transfer: The finished transfer.
            buffer: DDP's own, shape ``(n,)``.
            in_place: Whether the buffer itself was all-reduced.

        Returns:
            False if the mean is not finite although every rank's part was. This happens in float16 only, so other
            formats are not checked.
        """
        if buffer.is_sparse or has_room(buffer.dtype):
            transfer.mean_into(buffer)
            return True
        if in_place:
            return is_finite(buffer)
        finite, excess = self._means.write(transfer, buffer)
        if excess is not None:
            self.memory.hold_back(bucket, excess)
            self._note_overflow(buffer)
        return finite

    def note(self, sentence: str) -> None:
        """Put a sentence into the log and the journal. A sentence that was noted before is left out."""
        if sentence not in self._noted:
            self._noted.add(sentence)
            self._notes.append(sentence)

    def give_up_memory(self, names: tuple[str, ...]) -> None:
        """Drop what the memory holds of a bucket on which it keeps failing. Call it on the exchange thread."""
        self.note(
            f"The error memory keeps failing on {bucket_label(names)}: their residual is lost, and from now on their "
            "gradients are sent as plain DDP sends them."
        )
        try:
            self.memory.forget(names)
        except Exception:
            log.exception("memory %s cannot forget %s", self.memory.spec, bucket_label(names))

    def pop_notes(self) -> list[str]:
        """Return the sentences that were noted since the last call. Call it between steps."""
        if not self._notes:
            return []
        notes, self._notes = self._notes, []
        return notes

    def commit(self) -> None:
        """Make the step's residuals and learned state permanent."""
        for bucket, noise in self._noise:
            assert self.unused_everywhere is not None
            # DDP has used the mean of every parameter that any rank used, so there nothing is lost.
            lost = self.unused_everywhere()
            for name, piece in zip(bucket.names, noise.split(list(bucket.numels)), strict=True):
                if name not in lost:
                    piece.zero_()
            self.memory.hold_back(bucket, noise)
        self._noise.clear()
        self.memory.commit()
        self.aggregators[self._in_use].commit()

    def rollback(self) -> None:
        """Drop the step's residuals and learned state."""
        self._noise.clear()
        self.memory.rollback()
        self.aggregators[self._in_use].rollback()

    def drop(self) -> None:
        """Drop the step's residuals, because the trainer dropped its gradients after they were exchanged."""
        self.rollback()
        self.note(
            "Gradients were exchanged and then dropped (zero_grad without an optimizer step). They leave no residual. "
            "Freeze the module with requires_grad_(False), or use no_sync(), to save their exchange."
        )

    def expect_drops(self) -> None:
        """Keep a draft of each residual from the next step on, so that a step can be undone after it was applied."""
        if self.gradients_stay:
            self.gradients_stay = False
            self.note(
                "Gradients were set to zero, and no optimizer step was seen. From now on the agent checks whether such "
                "a step moved the parameters. If it did not, the gradients were dropped and leave no residual; the "
                "error memory keeps a second buffer for that. The residual of this step stays in the error memory."
            )

    def passes_through(self, plan: StepPlan, bucket: Bucket) -> bool:
        """Return whether this step sends the raw gradient: it is dense, measures nothing and adds no residual."""
        if not self.failing.keeps_memory(bucket):
            return True
        idle = plan.cf == 1.0 and not plan.measured and not self.memory.transforms
        return idle and not self.memory.has_residual(bucket)

    def unused(self, bucket: Bucket, gradient: Tensor) -> Tensor | None:
        """Return the elements whose residual stays in the memory, bool of shape ``(n,)``; None if there are none."""
        if self.unused_everywhere is None or not self.failing.keeps_memory(bucket):
            return None
        if not (self.memory.transforms or self.memory.has_residual(bucket)):
            return None
        return unused_elements(bucket, gradient)

    def _send(
        self,
        plan: StepPlan,
        bucket: Bucket,
        gradient: Tensor,
        key: Key,
        sums: StepSums,
        survey: Survey,
        unused: Tensor | None,
    ) -> Exchange | None:
        """Prepare and send a draft, then update the memory. Return None if the caller must all-reduce the buffer."""
        compensated, finite = None, True
        try:
            compensated, draft = self._prepare(plan, bucket, gradient, key, sums, survey, unused)
            finite = compensated is not None
        except Exception:
            # The other ranks wait for collectives of the agreed sizes. Issuing none would hang them, and others would
            # abort gloo, so this rank takes part with zeros. In a dense step the buffer still holds the gradient.
            what = "the gradient alone" if plan.cf == 1.0 else "zeros"
            log.exception(
                "compressing bucket %d failed; this rank sends %s in this step", bucket.number, what
            )
            sums.failed = 1
            draft = None if plan.cf == 1.0 else self._blank(plan, bucket, gradient, key, 0.0)
        if draft is None:
            return None
        transfer = draft.send(plan.cf)
        # If it is not finite, the memory must stay between its two calls: ``rollback`` knows an overflow by that.
        if finite:
            try:
                self._update_memory(bucket, gradient, transfer, compensated, sums)
            except Exception:  # the residual stays as it was before the step
                log.exception("the error memory failed on bucket %d", bucket.number)
                sums.failed = 1
        transfer.payload.forget()  # what it decodes to is as large as the gradient
        return transfer

    def _prepare(
        self,
        plan: StepPlan,
        bucket: Bucket,
        gradient: Tensor,
        key: Key,
        sums: StepSums,
        survey: Survey,
        unused: Tensor | None,
    ) -> tuple[CompensatedGradient | None, Draft | None]:
        """Add the residual, measure the sum, and compress it to the CFs that the plan measures.

        Returns:
            Gradient + residual, or None if it is not finite; and the draft to send, or None if the buffer holds all
            there is to send and the caller must all-reduce it.
        """
        if self.passes_through(plan, bucket):
            # The same bits as plain DDP: the buffer is only read. All energies are equal, so each gain is 1.
            histogram = kernels.tally(gradient) if survey.wanted else None
            sq = kernels.energy(gradient) if histogram is None else histogram.energy
            if sums.note_finite(sq):
                survey.add(histogram)
            sums.add_energies(sq, sq, sq, sq)
            sums.add_sent(sq)
            return None, None
        aggregator = self.aggregator_of(plan)
        # Encoding takes as long as the passes over the gradient that it makes. So the pass that adds the residual also
        # finds what the codec needs to know of the magnitudes: candidates by the last step's threshold, which is
        # quickest, or a histogram, if there is no threshold yet or the survey needs one anyway.
        ranked = bool(plan.measured) and aggregator.uses_histogram(gradient)
        sifter = self._sifter(bucket, gradient.numel(), plan.measured[0]) if ranked else None
        count = survey.wanted or (ranked and sifter is None)
        compensated = compensate(
            self.memory, bucket, gradient, dense=plan.cf == 1.0, count=count, sifter=sifter, unused=unused
        )
        sums.note_finite(compensated.gradient_sq)
        if not sums.note_finite(compensated.sq):
            # Not by way of the codec, which might leave just that element out. A dense step sends the gradient as it
            # is. If only the residual has overflown, that is finite, and the tick says that the step does not count.
            return None, None if plan.cf == 1.0 else self._blank(plan, bucket, gradient, key, math.nan)
        survey.add(compensated.histogram)
        draft, energies = None, [compensated.sq]
        clamped = self._clamped(gradient, compensated, dense=plan.cf == 1.0)
        if plan.measured:  # in a dense step, too: it measures the gain before anything is sent at a new CF
            x, magnitudes = (compensated.p, compensated.magnitudes) if clamped is None else (clamped, None)
            draft = aggregator.prepare(bucket, x, plan.measured, key, gradient.dtype, magnitudes)
            energies = [draft.kept_energy(cf) for cf in plan.measured]
        sums.add_energies(compensated.gradient_sq, compensated.sq, energies[0], energies[-1])
        if unused is not None:
            self._add_residual(compensated.withheld_sq, 0.0, sums)
        if plan.cf > 1.0:
            return compensated, draft
        # Dense: the draft has only measured. All of p is sent, so the memory keeps nothing but what was clamped.
        sums.add_sent(compensated.sq if clamped is None else kernels.energy(clamped))
        residual = update_after_dense(self.memory, bucket, compensated.p, clamped, gradient.dtype)
        if residual is not None:
            self._add_residual(kernels.energy(residual), kernels.inner(residual, gradient), sums)
        # Last, because everything above reads the raw gradient, and a failure must leave it in the buffer.
        gradient.copy_(compensated.p if clamped is None else clamped)
        return compensated, None

    def _clamped(self, gradient: Tensor, compensated: CompensatedGradient, dense: bool) -> Tensor | None:
        """Return gradient + residual, clamped to what the gradient's format can carry; None if all of it fits."""
        if compensated.p is gradient:  # there is no memory, so what is clamped would be lost
            return None
        limit = largest_summand(gradient.dtype, self.aggregator.communicator.size)
        if isinstance(compensated.sq, Tensor):  # cannot be read; the tick finds a dense sum that overflows
            return None if dense or limit == math.inf else compensated.p.clamp(-limit, limit)
        clamped = clamp_if_larger(compensated.p, compensated.sq, limit)
        if clamped is not None:
            self._note_overflow(gradient)
        return clamped

    def _count_sparse(self, bucket: Bucket, gradient: Tensor, sums: StepSums) -> None:
        """Add the energy of a sparse gradient, which is sent as plain DDP sends it."""
        sq = norm_sq(gradient)
        sums.note_finite(sq)
        sums.add_energies(sq, sq, sq, sq)
        sums.add_sent(sq)
        self.note(f"Gradients of {bucket.names[0]} are sparse: they are not compressed.")

    def _note_overflow(self, gradient: Tensor) -> None:
        self.note(
            f"Gradient + residual leaves {gradient.dtype}, which ends at {torch.finfo(gradient.dtype).max:,.0f}: what "
            "does not fit stays in the error memory. A smaller loss scale or compression factor avoids it."
        )

    def _sifter(self, bucket: Bucket, numel: int, cf: float) -> Sifter | None:
        if cf < LEAST_CF:
            return None
        k, sifter = kept_count(numel, cf), self._sifters.get(bucket.number)
        if sifter is not None and sifter.numel != numel:
            # DDP has regrouped its buckets. They may be smaller now, and the old room would never be freed.
            self._candidate_buffers, self._sifters, sifter = CandidateBuffers(), {}, None
        if sifter is None or (sifter.k, sifter.numel) != (k, numel):
            sifter = self._sifters[bucket.number] = Sifter(k, numel, self._candidate_buffers)
        return sifter

    def _update_memory(
        self,
        bucket: Bucket,
        gradient: Tensor,
        transfer: Exchange,
        compensated: CompensatedGradient | None,
        sums: StepSums,
    ) -> None:
        """Remove what this rank sent from its residual, while the transfer is in flight.

        ``compensated`` is None if preparing failed.
        """
        codec, payload = transfer.codec, transfer.payload
        sent_sq = codec.energy(payload)
        if not sums.note_finite(sent_sq):  # infinity subtracted from p could not be added back
            return
        sums.add_sent(sent_sq)
        if compensated is not None and compensated.unused is not None and payload.support is None:
            self._keep_noise(bucket, torch.where(compensated.unused, codec.decoded(payload), 0.0))
        if compensated is None or not compensated.full_residual or payload.support is None:
            residual = self.memory.update(bucket, codec, payload)
            if residual is not None:
                self._add_residual(kernels.energy(residual), kernels.inner(residual, gradient), sums)
            return
        # For e = p - s, ‖e‖² = ‖p‖² - 2⟨p, s⟩ + ‖s‖² and ⟨e, g⟩ = ⟨p, g⟩ - ⟨s, g⟩. The payload s has few elements, so
        # this saves two passes over e. It must come before ``update``, which makes e of p in the same buffer.
        residual_sq = compensated.sq - 2.0 * codec.inner(payload, compensated.p) + sent_sq
        residual_dot = compensated.dot(gradient) - codec.inner(payload, gradient)
        if self.memory.update(bucket, codec, payload) is not None:
            self._add_residual(at_least_zero(residual_sq), residual_dot, sums)

    def _keep_noise(self, bucket: Bucket, noise: Tensor) -> None:
        """Keep until ``commit`` what the codec sent for elements that are zero in p."""
        if not on_device(noise) and bool(noise.any()):  # on a device, what DDP used cannot be read in time
            self._noise.append((bucket, noise))

    def _add_residual(self, sq: Scalar, dot_gradient: Scalar, sums: StepSums) -> None:
        # In units of gradients: a memory with momentum keeps their sums, which are 1 / (1 - m) times larger.
        share = 1.0 / self.memory.amplification()
        sums.add_residual(sq * share**2, dot_gradient * share)

    def _blank(self, plan: StepPlan, bucket: Bucket, gradient: Tensor, key: Key, value: float) -> Draft:
        return self.aggregator_of(plan).blank(bucket, plan.cf, key, gradient.dtype, gradient.device, value)
