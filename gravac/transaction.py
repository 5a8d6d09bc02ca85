"""A step is a transaction: what is learned in it counts on all ranks, or on none."""

from collections.abc import Sequence

from torch import Tensor


class Transaction:
    """The base of everything that learns from steps: codecs, aggregators, memories. By itself it learns nothing.

    Whatever a step brings is a draft. When all ranks know whether the step counts, ``commit``, ``rollback`` or
    ``commit_where`` ends it.
    """

    name: str

    def local_statistics(self) -> list[float]:
        """Return the numbers of this rank's step whose means over ranks ``apply_mean_statistics`` needs.

        There are equally many on all ranks and in all steps. The agent's tick carries them.
        """
        return []

    def apply_mean_statistics(self, means: Sequence[float]) -> None:
        """Learn from the means over ranks of ``local_statistics``, which are equal on all ranks. ``commit`` follows.

        It is not called if preparing failed on any rank, because that rank's figures are incomplete.
        """
        return

    def commit(self) -> None:
        """Keep what was learned in this step."""
        return

    def rollback(self) -> None:
        """Forget what was learned in this step."""
        return

    def commit_where(self, counts: Tensor) -> None:
        """Keep what was learned in this step if it counts, else forget it. It replaces both for steps on a device.

        What is sync-free reads nothing here. This implementation reads ``counts`` if there is anything to learn.

        Args:
            counts: Whether the step counts, bool of shape ``()``.
        """
        if type(self).commit is not Transaction.commit:
            (self.commit if bool(counts) else self.rollback)()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of what was learned, as plain tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace what was learned.

        Raises:
            ValueError: The state is not one of this object.
        """
        if state:
            raise ValueError(f"{self.name} has no state, but {sorted(state)[0]!r} was given")
