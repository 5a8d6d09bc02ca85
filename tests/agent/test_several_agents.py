"""What several agents of one process may not share, and how their jobs are named."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac.protocol import End
from gravac_agent import Agent, SetupError, session
from tests.support.small_model import pair, step


def test_agents_that_share_what_they_may_not(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    options: dict[str, Any] = {"controller": None, "data_dir": tmp_path}
    layer = nn.Linear(2, 2)
    tied = [DistributedDataParallel(nn.Sequential(nn.Linear(4, 2), layer)) for _ in range(2)]
    first, second = ((one, torch.optim.SGD(one.parameters(), lr=0.1)) for one in tied)
    with Agent(module, optimizer, job="one", **options), Agent(*first, **options) as agent:
        assert agent.state is not None
        assert agent.state.job == "one-2"
        for other, more, message in (
            ((module, optimizer), {}, "this DDP module is wrapped by another Agent already"),
            (
                second,
                {},
                r"of this module \('1\.weight' among them\) have an Agent that runs \(job 'one-2'\): close",
            ),
            (
                pair(),
                {"job": "one"},
                "job='one' has an open Agent in this process already: give this one another",
            ),
        ):
            with pytest.raises(SetupError, match=message), Agent(*other, **more, **options):
                pass
        step(module, optimizer)
    with Agent(*second, **options), Agent(*pair(), job="one", **options):  # the others closed cleanly
        step(*second)


def test_a_start_that_fails_at_its_end_frees_all_that_it_made(
    world_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, optimizer = pair()
    options: dict[str, Any] = {"controller": None, "data_dir": tmp_path, "job": "mine"}
    plain = len(optimizer._optimizer_step_pre_hooks), len(module._forward_pre_hooks)

    def fail(*_: object) -> None:
        raise MemoryError

    before = set(threading.enumerate())  # a controller of another test may still end
    with monkeypatch.context() as patched:
        patched.setattr(session, "RunLog", fail)
        agent = Agent(module, optimizer, **options)
        with pytest.raises(MemoryError):
            agent.start()
        agent.close()
    after = set(threading.enumerate()) - before
    assert not [thread.name for thread in after if thread.name.startswith("gravac")]
    assert (len(optimizer._optimizer_step_pre_hooks), len(module._forward_pre_hooks)) == plain
    *_, end = gravac.read_trace(tmp_path / "mine" / "journal.jsonl")
    assert isinstance(end.record, End)
    assert end.record.message == "could not start"
    with Agent(module, optimizer, **options) as agent:  # neither the module nor the name is taken
        step(module, optimizer)
        assert agent.state is not None
        assert agent.state.job == "mine"


def test_agents_of_one_environment(
    world_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAVAC_JOB", "j" * 64)
    monkeypatch.setenv("GRAVAC_DATA_DIR", str(tmp_path))
    jobs = []
    with (
        Agent(*pair(), controller=None) as one,
        Agent(*pair(), controller=None) as two,
        Agent(*pair(), controller=None) as three,
    ):
        jobs = [agent.state.job for agent in (one, two, three) if agent.state]
    assert jobs == ["j" * 64, "j" * 60 + "-2", "j" * 60 + "-3"]
