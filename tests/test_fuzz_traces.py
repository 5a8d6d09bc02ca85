"""Altered traces, a few thousand of them: ``python -m tools.fuzz.traces --inputs 1000000`` is the long one."""

from gravac.traces.line import KINDS
from tools.fuzz.traces import fuzz, seeds


def test_the_seeds_hold_every_kind_of_line() -> None:
    text = b"".join(seeds())
    for kind in KINDS:
        assert f'{{"kind":"{kind}"'.encode() in text


def test_altered_traces_raise_nothing_undocumented() -> None:
    outcomes = fuzz(3000, seed=1)
    assert sum(outcomes.values()) == 3000
    # Alterations that all end at the first line would test nothing.
    both = ("read", "refused", "redecided", "not redecided", "checked, bad")
    assert all(outcomes[outcome] > 100 for outcome in both), outcomes
