"""An operator's order reaches all ranks of a real job at the same step."""

from itertools import groupby
from pathlib import Path

import pytest

from gravac.protocol import Override
from gravac.traces import read_trace
from gravac.traces.replay import check
from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed

TOKEN = "an-operators-token-0123456789abc"
ORDERS = {
    "12": {"action": "pin", "cf": 25.0, "actor": "alice"},
    "52": {"action": "dense", "actor": "bob", "note": "the loss looks odd"},
    "92": {"action": "resume", "actor": "alice"},
}


def test_all_ranks_follow_orders_at_the_same_step(run_ranks: RunRanks, tmp_path: Path) -> None:
    one, two = run_ranks("steered", 2, token=TOKEN, orders=ORDERS, steps=130)
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
