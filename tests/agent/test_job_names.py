"""A job's name stands for one policy, compressor and error memory: with another one, a start gets a name of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import WindowReport
from gravac.replays.replay import check
from gravac.traces import read_trace
from gravac_agent import Agent
from tests.support.small_model import pair, step

FIRST: dict[str, Any] = {"policy": "static:cf=2", "compressor": "topk", "memory": "residual"}


def trained(
    folder: Path, steps: int = 6, state: dict[str, Any] | None = None, **given: Any
) -> tuple[str, dict[str, Any]]:
    """Train under the name ``same``. Return the name that the run has at its end, and its state."""
    module, optimizer = pair()
    with Agent(module, optimizer, job="same", data_dir=folder, window=3, **FIRST | given) as agent:
        agent.wait_ready()
        if state is not None:
            agent.load_state_dict(state)
            agent.wait_ready()
        for _ in range(steps):
            step(module, optimizer)
        saved = agent.state_dict()
        found = agent.state
        assert found is not None
    return found.job, saved


def windows(folder: Path, job: str) -> int:
    path = folder / job / "journal.jsonl"
    assert check(path).ok
    return sum(isinstance(line.record, WindowReport) for line in read_trace(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "observe"}, "its policy is static, that of this run observe"),
        ({"policy": "static:cf=4"}, "its policy is static:cf=2.0, that of this run static:cf=4.0"),
        ({"compressor": "randomk"}, "its compressor is topk, that of this run randomk"),
        ({"memory": "none"}, "its memory is residual, that of this run none"),
    ],
)
def test_a_start_with_another_rule_has_a_journal_of_its_own(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], words: str
) -> None:
    options = {"controller": None}
    assert trained(tmp_path, **options)[0] == "same"
    assert trained(tmp_path, **options | change)[0] == "same-2"
    assert f"job 'same' is another training: {words}. So this run is job 'same-2'" in caplog.text
    assert trained(tmp_path, **options)[0] == "same", "the first one goes on"
    assert trained(tmp_path, **options | change)[0] == "same-2"
    assert (windows(tmp_path, "same"), windows(tmp_path, "same-2")) == (4, 4)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "no journal": lambda _: b"what somebody put there\n",
    "a changed byte": lambda raw: raw.replace(b'"samples":', b'"samples": ', 1),
}


@pytest.mark.parametrize("controller", [None, pytest.param("auto", marks=pytest.mark.distributed)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_start_beside_a_journal_that_cannot_be_read_has_one_of_its_own(
    world_of_one: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
    controller: str | None,
) -> None:
    assert trained(tmp_path, controller=None)[0] == "same"
    path = tmp_path / "same" / "journal.jsonl"
    path.write_bytes(damaged := DAMAGES[damage](path.read_bytes()))
    assert trained(tmp_path, controller=controller)[0] == "same-2"
    assert "job 'same' has a journal that cannot be read, and that stays as it is: " in caplog.text
    assert "So this run is job 'same-2'" in caplog.text
    second = tmp_path / "same-2" / "journal.jsonl"
    assert trained(tmp_path, controller=controller)[0] == "same-2"
    assert windows(tmp_path, "same-2") == 4
    second.write_bytes(b"also that\n")
    last, _ = trained(tmp_path, controller=controller)
    assert last not in ("same", "same-2")
    assert windows(tmp_path, last) == 2
    assert (path.read_bytes(), second.read_bytes()) == (damaged, b"also that\n")


@pytest.mark.parametrize("change", [{"compressor": "randomk"}, {"policy": "static:cf=4"}])
def test_a_checkpoint_goes_on_with_another_rule_under_that_name(
    world_of_one: None, tmp_path: Path, change: dict[str, Any]
) -> None:
    _, state = trained(tmp_path, controller=None)
    assert trained(tmp_path, state=state, controller=None, **change)[0] == "same-2"
    assert (windows(tmp_path, "same"), windows(tmp_path, "same-2")) == (2, 2)


def test_each_further_agent_of_a_process_has_a_name_of_its_own(world_of_one: None, tmp_path: Path) -> None:
    """Also where the ones before have ended: a sweep beside a model that stays."""
    options: dict[str, Any] = {"controller": None, "data_dir": tmp_path, "window": 3}
    names = []
    for _ in range(2):
        with Agent(*pair(), job="sweep", **options):
            for rate in range(3):
                module, optimizer = pair()
                with Agent(module, optimizer, policy=f"static:cf={2 + rate}", **options) as agent:
                    step(module, optimizer)
                    assert agent.state is not None
                    names.append(agent.state.job)
    assert names[:3] == ["sweep-2", "sweep-3", "sweep-4"]
    assert names[3:] == names[:3], "a process that begins again has the same names"
