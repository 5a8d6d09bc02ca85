"""The share of the energy that a rank chose that is really sent, if other ranks take part in the choice."""

from math import isfinite, isnan, log, nan

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.kernels import Scalar, alignment
from gravac.transaction import Transaction

PREFIX = "through/"
"""Begins the names of shares in a state. Then come the number of the bucket and the CF."""


def aligned(codec: Compressor, payload: Payload, x: Tensor) -> Scalar:
    """Return the energy of ``x`` along what a rank counts as sent: ⟨C(x), x⟩² / ‖C(x)‖².

    Args:
        codec: Decodes the payload.
        payload: What the rank counts as sent, C(x).
        x: The tensor it was made of, shape ``(n,)``.

    Returns:
        At least 0, and 0 if the inner product is below 0; not finite if the payload is not.
    """
    energy, inner = codec.energy(payload), codec.kept_inner(payload, x)
    if isinstance(energy, Tensor):
        assert isinstance(inner, Tensor)
        return torch.where(energy.isfinite(), alignment(energy, inner.clamp_min(0.0)), energy)
    return alignment(energy, max(0.0, inner)) if isfinite(energy) else energy


class Shortfall(Transaction):
    """The share of the chosen energy that was sent of a bucket, per CF, from the last committed step.

    The gate compares gains before anything is sent. With a shared support, however, a rank sends the leader's choice of
    elements. Owners pass on only the largest sums, and PowerSGD sends only what lies in the column space of
    the mean. A gain computed from a rank's own choice alone would be too large.

    Args:
        bucket: Number of the bucket.
    """

    def __init__(self, bucket: int) -> None:
        self.bucket = bucket
        self.shares: dict[float, Scalar] = {}
        """What was not sent, by CF; empty if all that was chosen is sent."""
        self.drafts: dict[float, Scalar] = {}
        """What the running step will make of them."""

    def expected(self, cf: float) -> Scalar:
        """Return the share of the chosen energy that will be sent; 1 until a share was learned.

        For a CF that was not sent yet it is the share of the nearest CF.
        """
        nearest = sorted(self.shares, key=lambda at: (abs(log(at / cf)), at))
        found: Scalar = 1.0
        for at in reversed(nearest):
            share = self.shares[at]
            # On a device NaN stands for nothing learned: nobody has read whether a step counted.
            found = torch.where(share.isnan(), found, share) if isinstance(share, Tensor) else share
        return found

    def record(self, cf: float, chosen: Scalar, through: Scalar) -> None:
        """Record one exchange as a draft.

        Args:
            cf: The CF it was sent at.
            chosen: Energy of what the rank chose.
            through: Energy of what it counts as sent (see ``aligned``).
        """
        if isinstance(chosen, Tensor):
            assert isinstance(through, Tensor)
            known = through.isfinite() & chosen.isfinite() & (chosen > 0.0)
            before = self.shares.get(cf, nan)
            self.drafts[cf] = torch.where(known, (through / chosen).clamp_max(1.0), before)
            return
        assert not isinstance(through, Tensor)
        if isfinite(through) and isfinite(chosen) and chosen > 0.0:
            self.drafts[cf] = min(1.0, through / chosen)

    def commit(self) -> None:
        self.shares |= self.drafts
        self.drafts.clear()

    def rollback(self) -> None:
        self.drafts.clear()

    def commit_where(self, counts: Tensor) -> None:
        for at, share in self.drafts.items():
            self.shares[at] = torch.where(counts, share, self.shares.get(at, nan))
        self.drafts.clear()

    def state_dict(self) -> dict[str, Tensor]:
        shares = {at: float(share) for at, share in self.shares.items()}
        return {
            f"{PREFIX}{self.bucket}/{cf!r}": torch.tensor([share], dtype=torch.float64, device="cpu")
            for cf, share in shares.items()
            if not isnan(share)
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace the shares by those of this bucket in ``state``. Raise ValueError if an entry is no share."""
        entries = [entry(*item) for item in state.items()]
        self.shares = {cf: share for bucket, cf, share in entries if bucket == self.bucket}
        self.drafts.clear()


def entry(name: str, value: Tensor) -> tuple[int, float, float]:
    """Return bucket, CF and share of an entry of a state. Raise ValueError if it is none."""
    try:
        bucket, cf = name.removeprefix(PREFIX).split("/")
        return int(bucket), float(cf), float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"state of {name!r} must be one number of a bucket and a CF") from None
