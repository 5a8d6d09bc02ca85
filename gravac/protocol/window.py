"""Window reports: raw sums, where the time went, how times spread over ranks, and single steps on request."""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gravac.protocol.decision import Phase
from gravac.protocol.fields import (
    Bytes,
    Choice,
    CompressionFactor,
    Count,
    Energy,
    LearningRate,
    Name,
    Ratio,
    Record,
    Seconds,
)

QUANTILES = (0.0, 0.5, 0.9, 1.0)
"""Lowest, median, 90 %, highest."""
Quantiles = Annotated[tuple[Seconds, ...], Field(min_length=4, max_length=4)]

_Product = Annotated[float, Field(ge=-1e300, le=1e300)]


class GainSums(Record):
    """Raw squared norms over the steps of one level, summed over ranks and steps.

    g: this step's raw gradient; p = g + residual before sending; sent: what left the rank;
    residual: what the error memory holds after sending. ``minimum_sq``/``candidate_sq``: energy that compressing p to
    that CF would send (both measured while exploring; equal in hold). Non-finite steps are left out.
    ``mean_sq``: ‖mean over ranks of g‖², over the ``mean_steps`` plainly dense steps only; ``mean_gradient_sq``:
    sum of ‖g‖² over the same steps. Both are for the gradient diversity, see ``gravac.signals.diversity``.

    The rest is for statistical efficiency, over a sample of at most 512 elements of the parameters, the same numbers on
    all ranks. ḡ: mean over ranks of g. moved: how far the parameters went in a block of at most 25 steps; reference:
    how far the same optimizer would have taken them with ḡ instead of what was exchanged. All are 0 where the optimizer
    cannot be followed.
    """

    steps: Count  # finite ones
    gradient_sq: Energy  # ‖g‖²
    compensated_sq: Energy  # ‖p‖²
    sent_sq: Energy  # ‖sent‖²
    minimum_sq: Energy  # energy sent at the minimum CF
    candidate_sq: Energy  # energy sent at the candidate CF
    residual_sq: Energy  # ‖residual‖²
    residual_dot_gradient: _Product  # ⟨residual, g⟩
    mean_steps: Count = 0  # plainly dense ones
    mean_sq: Energy = 0.0  # ‖mean of g‖² over those
    mean_gradient_sq: Energy = 0.0  # ‖g‖² over those
    progress_steps: Count = 0  # of the optimizer, in whole blocks
    moved_sq: Energy = 0.0  # ‖moved‖², summed over blocks
    reference_sq: Energy = 0.0  # ‖reference‖², summed over blocks
    moved_dot_reference: _Product = 0.0  # ⟨moved, reference⟩, summed over blocks
    raw_mean_sq: Energy = 0.0  # ‖ḡ‖²
    raw_dot_next: _Product = 0.0  # ⟨ḡ, ḡ of the next step⟩


class LevelSums(Record):
    """Steps of one window that sent the same CF with the same codec under the same decision (epoch).

    ``settled_steps``: steps after the first few at this level; their median duration on rank 0 is
    ``step_seconds_median`` (null when there is none), of which ``exposed_seconds_median`` is the wait for the network
    (communicate phase). ``cf`` 1 = dense.
    """

    epoch: Count  # of the decision
    cf: CompressionFactor  # that was sent
    steps: Count  # at this CF
    settled_steps: Count  # of those, after the first few
    step_seconds_median: Seconds | None  # of settled steps on rank 0; null: there is none
    exposed_seconds_median: Seconds | None  # of which waiting for the network
    dense_bytes: Bytes  # what dense would have handed over, all ranks
    payload_bytes: Bytes  # what was handed over, all ranks
    sums: GainSums  # for gains
    codec: Choice | None = None  # that was sent with; null: the job's compressor


class PhaseSeconds(Record):
    """Where the wall time of a window's steps went: critical path only, so the five add up to the whole.

    compress/communicate/decompress count only what the step waited for after backward ended; work hidden behind
    backward is in compute. compute also holds the optimizer and anything else.
    """

    data_wait: Seconds  # for the next batch
    compute: Seconds  # forward, backward, optimizer
    compress: Seconds  # encoding
    communicate: Seconds  # waiting for the network
    decompress: Seconds  # decoding


class InsideHosts(Record):
    """What the ranks of each host exchanged among themselves, where they divide gradients (``levels``).

    All other bytes of a window went between hosts then.
    """

    sent_bytes: Bytes  # to other ranks of the host, all ranks
    seconds: Seconds  # that steps waited for that, mean over ranks; a part of communicate


class RankRow(Record):
    """One rank's share of a window."""

    rank: Count  # from 0
    steps: Count  # of this window
    step_seconds: Seconds  # sum over the window's steps
    phases: PhaseSeconds  # sums over the steps
    samples: Count  # this rank's own
    nonfinite_steps: Count  # with NaN or infinity
    failed_steps: Count  # compression raised
    memory_bytes: Bytes  # held by the error memory
    agent_cpu_seconds: Seconds | None = None  # CPU time of the thread that encodes, sends and decodes


class Spread(Record):
    """Over all ranks, of one rank's seconds in the window: lowest, median, 90 % and highest, to the microsecond.

    Each is the time of some rank, but of each phase another one. ``step_seconds``: all phases.
    """

    step_seconds: Quantiles  # all phases
    data_wait: Quantiles  # for the next batch
    compute: Quantiles  # forward, backward, optimizer
    compress: Quantiles  # encoding
    communicate: Quantiles  # waiting for the network
    decompress: Quantiles  # decoding


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return ``QUANTILES`` of at least one value by nearest rank, so each is one of the values; rounded to 10⁻⁶."""
    ordered = sorted(values)
    return tuple(round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 6) for share in QUANTILES)


class SmoothedGain(Record):
    """Ratio of moving averages at one CF, as the ranks' gate uses it at the end of the window."""

    cf: CompressionFactor  # minimum or candidate
    gain: Ratio  # share of energy kept
    codec: Choice | None = None  # it is the gain of; null: the job's compressor


class GainCurve(Record):
    """Gain of the largest n/CF elements of each bucket, over ``steps`` surveyed steps and all ranks.

    ``gains[i]``: at least the gain at CF 10^(i/20), so CFs 1 to 1000; null when there was nothing to send. ``own``: the
    codec of the window's last step sends exactly these elements, so this is its own curve; else it is Top-k's. The
    curve holds for the residual of those steps.
    """

    steps: Count  # surveyed ones
    own: bool  # whether it is the codec's own curve
    gains: Annotated[tuple[Ratio | None, ...], Field(min_length=61, max_length=61)]  # at CF 10^(i/20)


class WindowReport(Record):
    """What rank 0 reports once a window. Raw sums, so that other signals can be computed later."""

    job: Name  # name
    incarnation: Name  # as registered
    window: Count  # counted from 0 over the whole job, without gaps
    first_step: Count  # from 0 over the whole job
    last_step: Count  # inclusive
    epoch: Count  # decision in force at the last step
    phase: Phase  # what the ranks were doing at the last step
    cf: CompressionFactor  # sent at the last step, after the gate
    seconds: Seconds  # wall time of the window on rank 0
    samples: Count  # all ranks
    dense_bytes: Bytes  # what dense would have handed to collectives, all ranks
    payload_bytes: Bytes  # what was handed over, all ranks, indices included
    loss: Annotated[float, Field(ge=-1e300, le=1e300)] | None  # mean of the logged ones; null: none
    nonfinite_steps: Count  # skipped: a gradient was not finite on some rank
    failed_steps: Count  # sent nothing: compression failed on some rank
    levels: Annotated[tuple[LevelSums, ...], Field(max_length=64)]  # one for each CF sent under one decision
    gains: Annotated[tuple[SmoothedGain, ...], Field(max_length=64)]  # as the gate saw them at the end
    phases: PhaseSeconds  # mean over ranks
    spread: Spread | None = None  # of times over all ranks; null: not known
    ranks: Annotated[tuple[RankRow, ...], Field(max_length=1024)]  # the first 1,024
    curve: GainCurve | None = None  # null: no step of the window was surveyed
    trial_seconds: Seconds | None = None  # longest step of a trial that ended early; null: none did
    residual_rate: LearningRate | None = None  # learning rate that the residual follows; null: none
    inside: InsideHosts | None = None  # of two levels of links, the inner one; null: there is one level
