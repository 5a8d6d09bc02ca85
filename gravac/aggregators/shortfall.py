"""How much of the energy that a rank chose is really sent, where other ranks take part in the choice."""

from math import isfinite, log

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload

_PREFIX = "through/"


def aligned(codec: Compressor, payload: Payload, x: Tensor) -> float:
    """Returns the energy of ``x`` along what a rank counts as sent: ⟨C(x), x⟩² / ‖C(x)‖².

    Args:
        codec: Decodes the payload.
        payload: What the rank counts as sent, C(x).
        x: The tensor it was made of, shape ``(n,)``.

    Returns:
        At least 0; not finite if the payload is not.
    """
    energy, inner = codec.energy(payload), codec.inner(payload, x)
    if not isfinite(energy):
        return energy
    return max(0.0, inner) ** 2 / energy if energy > 0.0 else 0.0


class Shortfall:
    """The share of the chosen energy that was sent, per bucket and CF, from the last committed step.

    The gate compares gains before anything is sent. But with a shared support a rank sends the leader's choice of
    elements, a reduce-scatter passes on only the largest sums, and PowerSGD sends what lies in the column space of the
    mean. A gain computed from a rank's own choice alone would be too large.
    """

    def __init__(self) -> None:
        self._shares: dict[tuple[int, float], float] = {}
        self._drafts: dict[tuple[int, float], float] = {}

    def expected(self, bucket: int, cf: float) -> float:
        """Returns the share of the chosen energy that will be sent; 1 until one was learned.

        For a CF that was not sent yet it is the share of the nearest one.
        """
        shares = {at: share for (number, at), share in self._shares.items() if number == bucket}
        if not shares:
            return 1.0
        return shares[min(shares, key=lambda at: (abs(log(at / cf)), at))]

    def learn(self, bucket: int, cf: float, chosen: float, through: float) -> None:
        """Records one exchange as a draft.

        Args:
            bucket: Number of the bucket.
            cf: The CF it was sent at.
            chosen: Energy of what the rank chose.
            through: Energy of what it counts as sent (see ``aligned``).
        """
        if isfinite(through) and isfinite(chosen) and chosen > 0.0:
            self._drafts[bucket, cf] = min(1.0, through / chosen)

    def commit(self) -> None:
        """Keeps the drafts of this step."""
        self._shares |= self._drafts
        self._drafts.clear()

    def rollback(self) -> None:
        """Drops the drafts of this step."""
        self._drafts.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the shares as float64 tensors of one element, keyed by bucket and CF."""
        return {
            f"{_PREFIX}{bucket}/{cf!r}": torch.tensor([share], dtype=torch.float64)
            for (bucket, cf), share in self._shares.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replaces the shares by those in ``state``.

        Returns:
            The entries of ``state`` that belong to something else.

        Raises:
            ValueError: An entry is not one number of a bucket and a CF.
        """
        self._shares, rest = {}, dict[str, Tensor]()
        self._drafts.clear()
        for name, value in state.items():
            if not name.startswith(_PREFIX):
                rest[name] = value
                continue
            try:
                bucket, cf = name.removeprefix(_PREFIX).split("/")
                self._shares[int(bucket), float(cf)] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise ValueError(f"state of {name!r} must be one number of a bucket and a CF") from None
        return rest
