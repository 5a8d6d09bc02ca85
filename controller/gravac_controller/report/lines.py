"""What a picture draws of a job: CF and gain by step."""

from collections.abc import Sequence
from dataclasses import dataclass

from gravac_controller.report.told import Told


@dataclass(frozen=True, slots=True)
class Lines:
    """By window: its first and last step, the CF that was sent, and the gain (None: not known)."""

    name: str
    first: Sequence[float]
    steps: Sequence[float]
    cfs: Sequence[float]
    gains: Sequence[float | None]

    def held(self) -> list[tuple[float, float]]:
        """Corners of the CF's line, which is level through each window."""
        found: list[tuple[float, float]] = []
        for first, last, cf in zip(self.first, self.steps, self.cfs, strict=True):
            if len(found) >= 2 and found[-1][1] == found[-2][1] == cf:
                found[-1] = (last, cf)
            else:
                found += [(first, cf), (last, cf)]
        return found

    def known_gains(self) -> list[list[tuple[float, float]]]:
        """The pieces of the gain's line, which has a gap where the gain is not known."""
        pieces: list[list[tuple[float, float]]] = [[]]
        for step, gain in zip(self.steps, self.gains, strict=True):
            if gain is None:
                pieces.append([])
            else:
                pieces[-1].append((step, gain))
        return [piece for piece in pieces if piece]


def lines(told: Told, name: str) -> Lines:
    """The lines of one trace. Its windows have all of these but the gain."""

    def column(title: str) -> list[float]:
        return [one.number(title) or 0.0 for one in told.windows]

    return Lines(
        name=name,
        first=column("first_step"),
        steps=column("last_step"),
        cfs=column("cf"),
        gains=[one.number("gain") for one in told.windows],
    )
