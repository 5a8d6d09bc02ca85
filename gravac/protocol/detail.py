"""The steps of a window one by one, for who wants to see inside it: optional, and nothing is decided by it."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from gravac.protocol.fields import Bytes, CompressionFactor, Count, Energy, Record, Seconds

MOST_STEPS = 1024
"""That one window can list."""

Column = Field(min_length=1, max_length=MOST_STEPS)
Times = Annotated[tuple[Seconds, ...], Column]
Counts = Annotated[tuple[Count, ...], Column]
Energies = Annotated[tuple[Energy | None, ...], Column]


class StepDetail(Record):
    """A column a figure, a place a step: ``first_step`` and those after it without a gap, to the window's last.

    Times are rank 0's, to the microsecond, and the five phases add up to ``seconds``. Squared norms are summed over
    ranks, as in ``GainSums``; null where a gradient was not finite. A step's own gain is ``candidate_sq`` /
    ``compensated_sq``; the smoothed one that decides is the window's.
    """

    first_step: Count  # number of the first one listed
    epoch: Counts  # of the decision it ran under
    cf: Annotated[tuple[CompressionFactor, ...], Column]  # that was sent
    seconds: Times  # from end to end of exchange
    data_wait: Times  # for the next batch
    compute: Times  # forward, backward, optimiser
    compress: Times  # encoding
    communicate: Times  # waiting for the network
    decompress: Times  # decoding
    payload_bytes: Annotated[tuple[Bytes, ...], Column]  # handed to collectives, all ranks
    gradient_sq: Energies  # ‖g‖²
    compensated_sq: Energies  # ‖p‖²
    sent_sq: Energies  # ‖sent‖²
    candidate_sq: Energies  # energy sent at the candidate CF
    residual_sq: Energies  # ‖residual‖²
    nonfinite_ranks: Counts  # with NaN or infinity
    failed_ranks: Counts  # whose compression raised

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        for name in COLUMNS:
            if len(getattr(self, name)) != len(self.epoch):
                got = f"{len(getattr(self, name))} values, epoch has {len(self.epoch)}"
                raise ValueError(f"{name}: every column has a value for each step; it has {got}")
        return self


COLUMNS = tuple(name for name in StepDetail.model_fields if name != "first_step")
