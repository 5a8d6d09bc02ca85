"""An operator's order reaches all ranks of a real job at the same step."""

from itertools import groupby
from pathlib import Path

import pytest

from gravac.protocol import Override
from gravac.replays.replay import check
from gravac.traces import read_trace
from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed

TOKEN = "an-operators-token-0123456789abc"
ORDERS = {
    "12": {"action": "pin", "cf": 25.0, "actor": "alice"},
    "52": {"action": "dense", "actor": "bob", "note": "the loss looks odd"},
    "92": {"action": "resume", "actor": "alice"},
}


def test_all_ranks_follow_orders_at_the_same_step(run_ranks: RunRanks, tmp_path: Path) -> None:
    one, two = run_ranks("steered", 2, fresh=True, token=TOKEN, orders=ORDERS, steps=130)
    assert one.pop("refused") == {}
    assert [order for _, order in one.pop("again")] == [None, None]
    assert not any("ended with the start" in text for text in one.pop("logged"))
    assert one == two
    stretches = [(cf, len(list(steps))) for cf, steps in groupby(cf for cf, _ in one["sent"])]
    assert [cf for cf, length in stretches if length > 5] == [10.0, 25.0, 1.0, 10.0]
    assert sorted({epoch for _, epoch in one["sent"]}) == [0, 1, 2, 3]
    found = check(tmp_path / "steered" / "journal.jsonl")
    assert found.ok, found.differences
    journaled = [line.record for line in read_trace(tmp_path / "steered" / "journal.jsonl")]
    orders = [record for record in journaled if isinstance(record, Override)]
    assert [(order.actor, order.action, order.epoch) for order in orders] == [
        ("alice", "pin", 0),
        ("bob", "dense", 1),
        ("alice", "resume", 2),
    ]


def test_a_pin_is_what_is_sent_or_is_refused(run_ranks: RunRanks, tmp_path: Path) -> None:
    """A codec with one size is asked for another CF: another codec of the job sends it, or the order is refused."""
    rounding = "nearest:levels=39"
    orders = {
        "12": {"action": "pin", "cf": 5.7, "codec": rounding, "actor": "alice"},
        "42": {"action": "pin", "cf": 20.0, "codec": rounding, "actor": "alice"},
        "52": {"action": "pin", "cf": 20.0, "actor": "alice"},
        "92": {"action": "pin", "cf": 7.5, "codec": "nearest:levels=15", "actor": "alice"},
    }
    policy = f"auto:plans={rounding}/nearest:levels=15"
    one, two = run_ranks("steered", 2, fresh=True, token=TOKEN, orders=orders, steps=130, policy=policy)
    refused, again, logged = one.pop("refused"), one.pop("again"), one.pop("logged")
    assert one == two
    assert list(refused) == ["42"]
    for words in (f"{rounding} sends 5.7, not 20", "7.5 with nearest:levels=15", "any with topk+bf16"):
        assert words in refused["42"]
    plans = [(codec, cf) for codec, (cf, _) in zip(one["codecs"], one["sent"], strict=True)]
    for step, plan, wire in (
        (38, (rounding, 5.7), 5.7),
        (88, ("topk+bf16", 20.0), 20.0),
        (128, ("nearest:levels=15", 7.5), 7.5),
    ):
        assert plans[step] == plan
        assert 0.8 * wire < one["wire"][step] < 1.5 * wire  # of small buckets, with bfloat16 and positions
    records = [line.record for line in read_trace(tmp_path / "steered" / "journal.jsonl")]
    asked = {(record.codec, record.cf): record for record in records if isinstance(record, Override)}
    assert list(asked) == [(rounding, 5.7), ("topk+bf16", 20.0), ("nearest:levels=15", 7.5)]
    found = check(tmp_path / "steered" / "journal.jsonl")
    assert found.ok, found.differences
    # The order in force at the end has ended with it: for the next start, and for one from its checkpoint.
    assert [order for _, order in again] == [None, None]
    assert all(rule != "pinned" for rule, _ in again)
    ended = [text for text in logged if "The order of alice (pin) ended with the start" in text]
    assert len(ended) == 2, logged
