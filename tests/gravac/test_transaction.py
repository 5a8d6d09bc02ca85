"""What is learned in a step counts, or not, and where nothing is learned nothing is read."""

import pytest
import torch

from gravac.transaction import Transaction


class NotesEnds(Transaction):
    """Notes how its steps ended."""

    name = "learner"

    def __init__(self) -> None:
        self.ends: list[str] = []

    def commit(self) -> None:
        self.ends.append("commit")

    def rollback(self) -> None:
        self.ends.append("rollback")


def test_where_a_device_knows_whether_a_step_counts() -> None:
    learner = NotesEnds()
    for counts in (True, False):
        learner.commit_where(torch.tensor(counts))
    assert learner.ends == ["commit", "rollback"]
    unreadable = torch.empty((), dtype=torch.bool, device="meta")
    Transaction().commit_where(unreadable)
    with pytest.raises(RuntimeError):
        learner.commit_where(unreadable)


def test_a_state_of_another_object_is_refused() -> None:
    learner = NotesEnds()
    learner.load_state_dict(learner.state_dict())
    with pytest.raises(ValueError, match="learner has no state, but 'a' was given"):
        learner.load_state_dict({"b": torch.ones(1), "a": torch.ones(1)})
