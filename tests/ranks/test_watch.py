"""A rank is lost while the others' exchange is on a device: no wait is without end, and the journal says which."""

import time
from pathlib import Path

import pytest

from gravac.protocol import End, Event
from gravac.traces import read_trace
from gravac_agent.errors import PeerError
from tests.support.ranks.harness import RunRanks
from tests.support.streams.task import Task
from tests.support.streams.training import OnStreams, each_rank

FRESH_RANKS = True
PATIENCE = 0.3


@pytest.mark.parametrize("how", ["wait_step", "run", "abandon"])
def test_no_wait_for_a_device_is_without_end(how: str) -> None:
    def each(one: OnStreams) -> float:
        one.step(0)
        one.take_in()
        one.device.queue(one.executor._side, None, lambda: False)  # a kernel that waits for what never comes
        one.device.patience = PATIENCE
        one.step(1)
        waits = {
            "wait_step": one.take_in,
            "run": lambda: one.executor.run(lambda: None),
            "abandon": one.executor.abandon,
        }
        began = time.monotonic()
        with pytest.raises(
            PeerError, match="has not ended within 300 ms: what another rank sends is missing"
        ):
            waits[how]()
        return time.monotonic() - began

    (waited,) = each_rank(Task("topk", 2, (10.0,) * 2), 1, each, ranks=1)
    assert waited >= PATIENCE


SAID = "the exchange has not ended within 20.0 s: what another rank sends is missing"


@pytest.mark.distributed
@pytest.mark.parametrize("reads", [False, True], ids=["agent waits", "trainer waits"])
def test_the_journal_names_a_lost_rank_before_a_watchdog_acts(
    run_ranks: RunRanks, tmp_path: Path, reads: bool
) -> None:
    timeout = 40.0
    lost = run_ranks("lost_on_streams", 2, timeout=timeout, reads=reads)[0]
    records = [line.record for trace in tmp_path.rglob("journal.jsonl") for line in read_trace(trace)]
    (event,) = (one for one in records if isinstance(one, Event) and one.kind == "failed")
    assert event.message.startswith(f"Step 5: {SAID}")
    assert event.message.endswith("rank 1 has not come that far")
    assert lost["error"] == ("AgentError: noted" if reads else f"PeerError: {event.message}")
    assert 20.0 < lost["lasted"] < timeout, lost
    assert isinstance(records[-1], End)
