"""A tournament is checked before it begins, and goes on where it was cut off."""

import json
from pathlib import Path

import pytest

from gravac_lab.simulate.plans import PlanError
from gravac_lab.simulate.run import learn
from gravac_lab.simulate.tournament import TournamentRun, cells, done, run
from gravac_lab.tasks import TaskError

TASK = "logistic:images=digits"


def test_a_tournament_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    """Dense and alone are always in it. Of a row that was cut off the run is repeated, and no other one."""
    rows = tmp_path / "rows.jsonl"
    wanted = list(cells([TASK], [], [2], [1, 2], 2))
    assert {(cell.plan, cell.seed) for cell in wanted} == {
        (plan, seed) for plan in ("dense", "alone") for seed in (1, 2)
    }
    whole = [json.dumps(learn(cell.task, cell.plan, cell.ranks, cell.seed, cell.steps)) for cell in wanted]
    rows.write_text("\n".join(whole)[:-40])
    assert done(rows) == set(wanted[:3])
    assert rows.read_text() == "\n".join(whole)[:-40], (
        "reading changes nothing: another process may write the line"
    )
    lines = list(run(wanted, rows, workers=1))
    assert lines[0] == "1 of 4 runs to do"
    assert len(lines) == 2
    assert rows.read_text().splitlines()[:3] == whole[:3]
    assert done(rows) == set(wanted)
    assert list(run(wanted, rows, workers=1)) == ["0 of 4 runs to do"]
    repeated = json.loads(rows.read_text().splitlines()[-1])
    assert repeated["curve"] == json.loads(whole[-1])["curve"]
    assert done(tmp_path / "missing.jsonl") == set() == done(Path("/dev/null"))


def test_a_tournament_is_checked_before_it_begins() -> None:
    with pytest.raises(TaskError, match="did you mean"):
        list(cells(["logistc"], [], [2], [1], 2))
    with pytest.raises(PlanError, match="did you mean"):
        list(cells([TASK], ["topkk@10"], [2], [1], 2))
    with pytest.raises(TaskError, match="3 ranks cannot share a batch of 64"):
        list(cells([TASK], [], [3], [1], 2))
    assert TournamentRun(TASK, "dense", 2, 1, 2) in cells([TASK], [], [2], [1], 2)
