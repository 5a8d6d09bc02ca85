"""Two levels of links on a device, four ranks on two hosts: nothing is lost, ranks agree to the bit, errors are raised.

What depends on the order of work is in ``lives``.
"""

from typing import Any

import pytest
import torch

from gravac.collectives import Work
from gravac.kernels.device import owned
from gravac_agent.streams.messages import Messages
from gravac_agent.streams.rounded import RoundedMessages
from tests.support.streams import lives
from tests.support.streams.codecs import switching
from tests.support.streams.compare import Outcome, differences
from tests.support.streams.conserved import check_abandoned, check_agreement, check_conservation
from tests.support.streams.task import Task
from tests.support.streams.training import OnStreams, each_rank, on_streams

BAD = frozenset({(3, 1), (4, 0), (7, 0), (7, 2)})
RANKS, HOSTS = 4, 2
ROUNDED = 2e-4
"""How far what arrives and waits may be from what came, where undoing a step rounds."""
WHOLE: list[dict[str, Any]] = [
    {"codec": "topk+bf16"},
    {"codec": "topk+twobit"},
    {"codec": "topk+twobit", "collective": "owners"},
    {"codec": "int8"},
    {"codec": "nearest:levels=7", "collective": "compressed-all-reduce"},
]


def divided(codec: str, buckets: int = 6, steps: int = 10, **changes: Any) -> Task:
    cfs = (4.0,) * steps if changes.get("whole") else switching(steps)
    return Task(codec, buckets, cfs, levels=RANKS // HOSTS, **changes)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each bucket that was sent in whole messages. Tiles are small enough for these."""
    elements: list[int] = []

    def noting(send: Any) -> Any:
        def noted(self: Any, plan: Any, offers: Any, *given: Any) -> Any:
            elements.extend(offer.gradient.numel() for offer in offers)
            return send(self, plan, offers, *given)

        return noted

    for kind in (Messages, RoundedMessages):
        monkeypatch.setattr(kind, "send", noting(kind.send))
    monkeypatch.setattr(owned, "TILES", (2,))
    monkeypatch.setattr(owned, "ROWS", 1)
    return elements


@pytest.mark.parametrize("codec", ["topk", "topk+bf16", "int4", "int8", "powersgd", "randomk", "bf16"])
@pytest.mark.parametrize("buckets", [1, 6])
def test_what_arrived_and_what_waits_is_what_came(codec: str, buckets: int) -> None:
    """After any number of steps, also where some do not count; the means are equal on all ranks."""
    for steps in (5, 10):
        outcomes = check_conservation(divided(codec, buckets, steps, bad=BAD), RANKS, ROUNDED)
        lost = {step for step, _ in BAD if step < steps}
        for outcome in outcomes:
            assert {step for step, one in enumerate(outcome.results) if one.tick.sums.nonfinite} == lost


@pytest.mark.long
@pytest.mark.parametrize("changes", WHOLE, ids=str)
def test_nothing_is_lost_in_whole_messages(changes: dict[str, Any], whole: list[int]) -> None:
    for steps in (5, 10):
        task = divided(**changes, steps=steps, bad=BAD, whole=True)
        check_conservation(task, RANKS, ROUNDED)
    assert max(whole) == 72, "a piece has half of the rows of 12"
    for seed in (2, 3):
        assert not differences(on_streams(task, seed, RANKS), on_streams(task, 1, RANKS))


def test_nothing_is_lost_where_each_mean_is_used_at_once() -> None:
    check_conservation(divided("topk", fsdp="replicas", bad=BAD), RANKS)


def test_a_dense_step_is_that_of_whole_gradients_to_rounding() -> None:
    dense = Task("dense", 6, (1.0,) * 8, BAD)
    flat = on_streams(dense, 1, RANKS)
    levels = on_streams(Task("dense", 6, (1.0,) * 8, BAD, levels=2), 1, RANKS)
    check_agreement(levels)
    for mine, theirs in zip(levels[0].parameters, flat[0].parameters, strict=True):
        assert torch.allclose(mine, theirs, rtol=0.0, atol=1e-6)


def test_bytes_and_norms_are_those_of_pieces() -> None:
    """Half of a gradient goes to the other rank of the host, and half of the mean. Nobody knows the raw mean's norm."""
    outcomes = on_streams(divided("topk", steps=4), 1, RANKS)
    padded = sum(
        2 * -(-rows // 2) * columns
        for rows, columns in ((12, 10), (12, 1), (12, 12), (12, 1), (4, 12), (4, 1))
    )
    for outcome in outcomes:
        for result in outcome.results:
            assert result.inside_bytes == padded * 4
            assert result.dense_bytes == padded * 4 / 2
            assert result.mean_sq is None
            assert {activity for activity, *_ in result.activity} >= {"inside", "communicate"}


@pytest.mark.parametrize(("buckets", "undone"), [(1, True), (4, True), (4, False)])
def test_a_backward_that_did_not_end_leaves_nothing(buckets: int, undone: bool) -> None:
    check_abandoned(divided("topk+bf16", steps=12, whole=True), buckets, undone, RANKS)


def test_buckets_may_be_regrouped() -> None:
    """Their pieces have the same parts of parameters, so the residual stays theirs."""
    check_conservation(divided("topk", regrouped=True, bad=BAD), RANKS)


def test_a_host_level_that_does_not_wait_shows() -> None:
    """As each other dependency, see ``test_each_dependency_is_needed``."""

    def life(one: OnStreams) -> Outcome:
        assert one.host is not None

        def ignored(work: Work) -> None:
            return

        one.host._wait = ignored
        return one.train()

    expected = on_streams(lives.DIVIDED, None, RANKS)
    for seed in range(4):
        if differences(each_rank(lives.DIVIDED, seed, life, RANKS), expected):
            return
    pytest.fail("the gradients of other ranks are not waited for, and nothing shows it")


@pytest.mark.parametrize("how", ["divide", "gather", "decode"])
def test_a_rank_that_fails_issues_no_more_and_all_raise(how: str) -> None:
    """The others of its host would take what it sends next for what they wait for."""
    task, at = divided("topk", steps=4), (2, 3)  # step and bucket

    def life(one: OnStreams) -> tuple[str, int, int, list[float]]:
        host, executor = one.host, one.executor
        assert host is not None
        owner, name = {
            "divide": (host, "divide"),
            "gather": (host, "gather"),
            "decode": (executor.channels.means, "write_unread"),
        }[how]
        real, calls = getattr(owner, name), 0

        def failing(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if one.rank == 1 and calls == 6 * at[0] + at[1] + 1:
                raise RuntimeError("deliberate")
            return real(*given)

        setattr(owner, name, failing)
        one.device.patience = 1.0
        try:
            one.train()
        except Exception as error:
            issued = host._gradients.issued
            largest = [float(buffer.abs().max()) for buffer in one.buffers]
            return f"{type(error).__name__}: {error}", calls, issued, largest
        return "", calls, 0, []

    found = each_rank(task, None, life, RANKS)
    assert "deliberate" in found[1][0]
    assert all(error for error, *_ in found), found
    for error, *_ in (found[0], found[2], found[3]):
        assert error.startswith("Deadlock"), "the device must wait for the lost rank until the host gives up"
    # Two collectives a bucket: of what it divides, then of what it gathers at the end of a step.
    expected = 12 * at[0] + (at[1] if how == "divide" else 6 + at[1])
    assert found[1][2] == expected
    assert found[1][3][at[1] :] == [0.0] * (6 - at[1])
