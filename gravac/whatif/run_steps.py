"""The step time of a tournament's run on a link, with the collective by which the run learned."""

from dataclasses import dataclass

from gravac.aggregators import parse
from gravac.collectives import AUTO, CompressedAllReduce, Gather, Network
from gravac.tournament import Run
from gravac.tournament.rows import DENSE
from gravac.whatif.exchange import UnknownSizes, Volume, volume, volume_of_layers
from gravac.whatif.nominal import NominalJob

AS_GOOD = frozenset({"bf16", "fp16"})
"""Codecs that a second rounding does not hurt: it errs by 2⁻⁹ at most."""
LEAST_CF = 1.01
"""Of a run whose layers are sent with several strengths, some of them dense."""


def step_seconds(run: Run, network: Network, compute_seconds: float) -> float:
    """Return the predicted duration of a step of a run.

    Where layers have several strengths it is that of the mean bytes.

    Args:
        run: of a tournament.
        network: between the ranks.
        compute_seconds: of a step of one rank without any exchange.

    Raises:
        ValueError: the plan names no codec that is known, or no strength.
    """
    if run.wire_cf is None:  # alone
        return compute_seconds
    if (layered := run.layered_codec) is not None:
        exchange = volume_of_layers(layered, run.elements, run.payload_bytes, run.ranks, run.sent_bytes)
        job = NominalJob(run.elements, run.ranks, compute_seconds)
        return job.step(layered, max(LEAST_CF, run.wire_cf), network, exchange=exchange).seconds
    codec, at, rest = run.plan.rpartition("@")
    cf = float(rest.partition("/")[0]) if at else 1.0
    if cf > 1.0:
        parse(codec)
    elif run.plan != DENSE and not run.repeats_dense:
        raise ValueError(f"plan {run.plan!r} has no strength")
    learned = LearnedJob(run.elements, run.ranks, compute_seconds, run.collective or AUTO)
    return learned.step(codec, cf, network, run.payload_bytes).seconds


def chosen_collective(run: Run, network: Network) -> str:
    """Return the collective that agents choose by default for the plan of a run, a codec at a strength."""
    codec, _, rest = run.plan.rpartition("@")
    return volume(codec, run.elements, float(rest.partition("/")[0]), run.ranks, network).collective


@dataclass(frozen=True, slots=True)
class LearnedJob(NominalJob):
    """A job whose payloads are exchanged as they were when it learned.

    Attributes:
        collective: That the plan names. ``auto``: the quickest with which the ranks get the exact mean of what was
            sent. A compressed all-reduce rounds the mean again, so a run that learned without it says nothing of it.
    """

    collective: str = AUTO

    def volume(
        self, compressor: str, cf: float, network: Network, payload_bytes: float | None = None
    ) -> Volume:
        try:
            found = volume(compressor, self.elements, cf, self.ranks, network, self.collective)
        except UnknownSizes:
            return NominalJob.volume(self, compressor, cf, network, payload_bytes)
        rounds = self.collective == AUTO and found.collective == CompressedAllReduce.name
        if rounds and compressor not in AS_GOOD:
            return volume(compressor, self.elements, cf, self.ranks, network, Gather.name)
        return found
