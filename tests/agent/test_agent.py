"""An agent from its start to its end, and wrong uses, each with a clear error; in one process, a world of one."""

import math
import re
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac.policies import DensePolicy
from gravac.protocol import End, WindowReport
from gravac.replays.replay import check
from gravac.traces import read_trace
from gravac_agent import Agent, ClosedError, SetupError
from gravac_agent.settings import load
from gravac_agent.state.by_rank import unpack
from gravac_controller.cli import main
from gravac_controller.lock import CONTROL_TOKEN_NAME
from tests.support.small_model import pair, step


class Broken:
    def __float__(self) -> float:
        raise KeyError("a figure of the user's own")


CALLS: dict[str, tuple[Any, str]] = {
    "loss": (lambda agent: agent.log(loss="0.3"), r"loss='0\.3' is not one number"),
    "losses": (
        lambda agent: agent.log(loss=torch.ones(3)),
        r"loss of shape \(3,\) is not one number.*loss\.mean\(\)",
    ),
    "meta loss": (
        lambda agent: agent.log(loss=torch.ones((), device="meta")),
        r"loss=tensor.*meta.* is not one number",
    ),
    "huge loss": (lambda agent: agent.log(loss=10**400), r"loss=10000.* is not one number"),
    "complex loss": (
        lambda agent: agent.log(loss=torch.ones((), dtype=torch.complex64)),
        r"loss=.* is not one",
    ),
    "array of losses": (
        lambda agent: agent.log(loss=numpy.ones(2)),
        r"loss of shape \(2,\) is not one number",
    ),
    "broken loss": (lambda agent: agent.log(loss=Broken()), r"loss=.*Broken.* is not one number"),
    "true loss": (lambda agent: agent.log(loss=numpy.True_), r"loss=.*True.* is not one number"),
    "samples": (lambda agent: agent.log(samples=-3), r"samples=-3 is not a number of samples"),
    "half a sample": (lambda agent: agent.log(samples=2.5), r"samples=2\.5 is not a number of samples"),
    "true samples": (lambda agent: agent.log(samples=True), r"samples=True is not a number of samples"),
    "huge samples": (lambda agent: agent.log(samples=10**400), r"samples=1000.* is not a number of samples"),
    "huge clip": (lambda agent: agent.clip_grad_norm_(10**400), r"max_norm=1000.* is not a number"),
    "clips": (lambda agent: agent.clip_grad_norm_(torch.ones(2)), r"max_norm=tensor.* is not a number"),
    "path": (
        lambda agent: agent.load_state_dict("x.pt"),
        r"state='x\.pt' is no state of an Agent.*torch\.load reads",
    ),
    "state": (lambda agent: agent.load_state_dict(None), r"state=None is no state of an Agent"),
    "nothing": (lambda agent: agent.switch(), r"nothing to change: pass compressor=, memory= or collective="),
    "switch": (lambda agent: agent.switch(compressor=5), r"compressor=5 must be a text"),
    "clip": (
        lambda agent: agent.clip_grad_norm_([], 1.0),
        r"max_norm=\[\] is not a number.*without the parameters",
    ),
}


def test_a_wrong_call_is_named_with_the_fix(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    with Agent(module, optimizer, controller=None, data_dir=tmp_path) as agent:
        for call, message in CALLS.values():
            with pytest.raises(SetupError, match=message):
                call(agent)
        step(module, optimizer)  # none of them has done anything


def test_figures_of_every_kind_that_is_a_number(world_of_one: None, tmp_path: Path) -> None:
    figures = [2, 2.0, numpy.float32(2), numpy.array(2.0), numpy.array([[2.0]]), Fraction(2), Decimal(2)]
    figures += [torch.tensor(2, requires_grad=False), torch.tensor([2.0], requires_grad=True).mean() * 1.0]
    module, optimizer = pair()
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, window=len(figures)) as agent:
        for figure in figures:
            step(module, optimizer)
            agent.log(loss=figure, samples=numpy.int64(5))
    records = [line.record for line in read_trace(next(tmp_path.glob("*/journal.jsonl")))]
    reports = [record for record in records if isinstance(record, WindowReport)]
    assert {report.loss for report in reports} == {2.0}
    assert sum(report.samples or 0 for report in reports) == 3 + 5 * (len(figures) - 1), (
        "from the second step on"
    )


RATES = {
    "none": None,
    "text": "fast",
    "huge": 10**400,
    "meta": torch.ones((), device="meta"),
    "nan": math.nan,
    "negative": -0.1,
}


@pytest.mark.parametrize("rate", list(RATES.values()), ids=RATES)
def test_a_rate_that_is_no_number(world_of_one: None, tmp_path: Path, rate: Any) -> None:
    """Adafactor with steps of its own has None, and an agent could not start."""

    class Own(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": rate, "momentum": rate})

        def step(self, closure: Any = None) -> None:
            pass

    module, _ = pair()
    optimizer = Own(module.parameters())
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, policy="static:cf=2") as agent:
        for _ in range(3):
            step(module, optimizer)
        assert agent._parts is not None
        assert agent._parts.spec.optimizer is not None
        assert agent._parts.spec.optimizer.learning_rate is None
        optimizer.param_groups[0]["lr"] = 0.1
        step(module, optimizer)
        optimizer.param_groups[0]["lr"] = rate
        step(module, optimizer)
        assert all(bool(one.isfinite().all()) for one in agent._parts.memory.state_dict().values())


def test_an_agent_that_is_never_entered(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, optimizer = pair()
    Agent(module, optimizer, controller=None, data_dir=tmp_path)  # no reference is left
    step(module, optimizer)
    step(module, optimizer)
    assert caplog.text.count("the Agent made for it does not run: nothing is compressed. Write `with") == 1
    caplog.clear()
    agent = Agent(module, optimizer, controller=None, data_dir=tmp_path)
    with pytest.raises(SetupError, match="use it inside `with`"):
        agent.log(loss=1.0)
    with agent:
        step(module, optimizer)
    step(module, optimizer)
    Agent(module, optimizer, enabled=False)
    Agent(module, optimizer, controller=None, data_dir=tmp_path).close()
    step(module, optimizer)
    assert "does not run" not in caplog.text


def test_a_state_of_another_model(world_of_one: None, tmp_path: Path) -> None:
    def made(width: int) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = DistributedDataParallel(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2)))
        return module, torch.optim.SGD(module.parameters(), lr=0.1)

    options: dict[str, Any] = {"controller": None, "data_dir": tmp_path, "policy": "static:cf=4"}
    module, optimizer = made(64)
    with Agent(module, optimizer, **options) as agent:
        step(module, optimizer)
        state = agent.state_dict()
    for other, message in (
        (made(32), r"parameter '0\.weight' has shape \(64, 4\) there and \(32, 4\) here"),
        (pair(), r"the module has no parameter '0\.weight' of shape \(64, 4\)"),
    ):
        with Agent(*other, **options) as agent, pytest.raises(SetupError, match=message):
            agent.load_state_dict(state)


def test_no_process_group(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module, optimizer = pair()
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    with pytest.raises(SetupError, match=r"call .*init_process_group first"):
        Agent(module, optimizer)


def own_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return allreduce_hook(None, bucket)


HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    "own_hook": lambda module: module.register_comm_hook(None, own_hook),
    "fp16_compress_wrapper.<locals>.fp16_compress_wrapper_hook": lambda module: module.register_comm_hook(
        None, fp16_compress_wrapper(allreduce_hook)
    ),
    "BuiltinCommHookType.FP16_COMPRESS": lambda module: module._register_builtin_comm_hook(
        dist.BuiltinCommHookType.FP16_COMPRESS
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hook_already_taken(world_of_one: None, tmp_path: Path, name: str) -> None:
    """It is named, also at a second try."""
    module, optimizer = pair()
    HOOKS[name](module)
    for _ in range(2):
        agent = Agent(module, optimizer, controller=None, data_dir=tmp_path)
        with pytest.raises(SetupError, match=f"already has a communication hook, '{re.escape(name)}'"), agent:
            pass


def test_the_hook_line_and_an_agent(world_of_one: None, tmp_path: Path) -> None:
    """Before its first backward and after it."""
    module, optimizer = pair()
    state, hook = gravac.hook(controller=None, data_dir=tmp_path)
    module.register_comm_hook(state, hook)
    for _ in range(2):
        with pytest.raises(SetupError, match=r"has gravac\.hook, which makes an Agent itself"):
            Agent(module, optimizer, controller=None, data_dir=tmp_path).start()
        step(module, optimizer)
    assert state.agent is not None
    state.agent.close()  # else it runs as long as this process


def test_use_after_close(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, policy="static:cf=2") as agent:
        step(module, optimizer)
        assert agent.state is not None
        assert agent.state.step == 1
    with pytest.raises(ClosedError, match="closed"):
        agent.log(loss=1.0)
    with pytest.raises(ClosedError, match="closed"):
        agent.state_dict()
    with pytest.raises(ClosedError, match="make a new one"), agent:
        pass
    agent.close()
    step(module, optimizer)  # the module trains on


def test_start_and_close_without_with(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    agent = Agent(module, optimizer, controller=None, data_dir=tmp_path, job="plain", policy="static:cf=2")
    agent.start()
    with pytest.raises(SetupError, match=r"was started already: call start\(\) once"):
        agent.start()
    step(module, optimizer)
    assert agent.state is not None
    agent.close()
    agent.close()
    assert agent.state is None
    with pytest.raises(ClosedError, match="make a new one"):
        agent.start()
    ends = [
        line.record for line in read_trace(tmp_path / "plain/journal.jsonl") if isinstance(line.record, End)
    ]
    assert [end.steps for end in ends] == [1], "the second close reports nothing"


def test_a_failed_start_may_be_repeated(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    first, second = (Agent(module, optimizer, controller=None, data_dir=tmp_path) for _ in range(2))
    first.start()
    with pytest.raises(SetupError, match="wrapped by another Agent already"):
        second.start()
    first.close()
    second.start()
    second.close()


def test_ddps_hook_and_torchs_hooks_are_not_methods_of_the_agent() -> None:
    public = {name for name in dir(Agent) if not name.startswith("_")}
    methods = {"start", "close", "log", "wait_ready", "state_dict", "load_state_dict", "switch"}
    methods |= {"clip_grad_norm_", "figures", "finish_backward"}
    assert public == methods | {"state", "url", "trace_path"}


def test_the_users_exception_is_raised_unchanged(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()

    def broken_training() -> None:
        with Agent(module, optimizer, controller=None, data_dir=tmp_path):
            step(module, optimizer)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        broken_training()
    with Agent(module, optimizer, controller=None, data_dir=tmp_path):
        step(module, optimizer)


def test_not_enabled_does_nothing(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    with Agent(module, optimizer, enabled=False, data_dir=tmp_path) as agent:
        step(module, optimizer)
        agent.log(loss=1.0)
        assert agent.state is None
        assert agent.url is None
        agent.load_state_dict(agent.state_dict())
    module.register_comm_hook(None, allreduce_hook)  # no hook was taken
    assert list(tmp_path.glob("*/journal.jsonl")) == []


def test_an_unregistered_policy_decides_in_process(world_of_one: None, tmp_path: Path) -> None:
    class Mine(DensePolicy):
        name = "mine"

    module, optimizer = pair()
    with pytest.raises(SetupError, match="controller=None"), Agent(module, optimizer, policy=Mine()):
        pass
    with Agent(module, optimizer, policy=Mine(), controller=None, data_dir=tmp_path, window=2) as agent:
        for _ in range(5):
            step(module, optimizer)
        assert agent.state is not None
        assert agent.state.window == 2


def test_a_window_in_which_a_policy_learns_nothing(world_of_one: None, tmp_path: Path) -> None:
    """`auto` held 400 windows of 2 steps with "too few settled steps"."""
    for policy, window, least in (("auto", 2, 3), ("gravac", 1, 3), ("roundrobin:min_settled=4", 3, 4)):
        module, optimizer = pair()
        agent = Agent(module, optimizer, controller=None, data_dir=tmp_path, policy=policy, window=window)
        with (
            pytest.raises(
                SetupError, match=rf"^window={window} \(GRAVAC_WINDOW\).*: make it {least} or more"
            ),
            agent,
        ):
            pass
        assert not list(tmp_path.glob("*/journal*"))
    for policy, window in (("gravac:variant=paper", 2), ("static:cf=4", 1)):
        module, optimizer = pair()
        with Agent(
            module,
            optimizer,
            controller=None,
            data_dir=tmp_path,
            policy=policy,
            window=window,
            job=policy[:6],
        ):
            step(module, optimizer)


def test_a_checkpoint_that_does_not_fit(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, policy="static:cf=4") as agent:
        step(module, optimizer)
        (state,) = unpack(agent.state_dict())
        with pytest.raises(SetupError, match="before the first step"):
            agent.load_state_dict(state)
    for change, message in (
        ({"version": 9}, "version 9"),
        ({"world_size": 4}, "a run with 4 ranks, this one has 1: pass the states of all its ranks"),
        ({"rank": 3}, "rank 3"),
    ):
        with (
            Agent(module, optimizer, controller=None, data_dir=tmp_path, policy="static:cf=4") as agent,
            pytest.raises(SetupError, match=message),
        ):
            agent.load_state_dict({**state, **change})
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, policy="static:cf=4") as agent:
        with pytest.raises(SetupError, match=r"the list has ranks \[0\]"):
            agent.load_state_dict([{**state, "world_size": 2}])
        agent.load_state_dict([{**state, "world_size": 2}, {**state, "world_size": 2, "rank": 1}])


def test_an_unwritable_folder_costs_the_journal_only(world_of_one: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    module, optimizer = pair()
    with Agent(
        module, optimizer, controller=None, data_dir=tmp_path / "file", window=1, policy="dense"
    ) as agent:
        step(module, optimizer)
        assert agent.trace_path is None
        assert agent.state is not None
        assert agent.state.step == 1


def test_a_job_name_used_again_goes_on_in_its_journal(world_of_one: None, tmp_path: Path) -> None:
    for steps in (7, 5):
        module, optimizer = pair()
        with Agent(
            module, optimizer, controller=None, data_dir=tmp_path, job="again", window=2, policy="static:cf=4"
        ) as agent:
            for _ in range(steps):
                step(module, optimizer)
            path = agent.trace_path
    assert path is not None
    reports = [line.record for line in read_trace(path) if isinstance(line.record, WindowReport)]
    assert [report.window for report in reports] == [0, 1, 2, 3, 4, 5, 6]
    ends = [line.record for line in read_trace(path) if isinstance(line.record, End)]
    assert [(end.windows, end.steps) for end in ends] == [(4, 7), (7, 12)]  # of the whole job
    assert check(path).ok


@pytest.mark.distributed
def test_the_owner_of_the_folder_steers_a_training(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    with Agent(
        module, optimizer, data_dir=tmp_path, job="mine", policy="static:cf=2", window=2, steering="owner"
    ) as agent:
        assert agent.wait_ready(60)
        order = ["steer", "mine", "pin", "4", "--wait", "0", "--data-dir", str(tmp_path)]
        found = CliRunner().invoke(main, order)
        assert found.exit_code == 0, found.output
        until = time.monotonic() + 60
        while agent.state is not None and agent.state.cf != 4 and time.monotonic() < until:
            step(module, optimizer)
            time.sleep(0.05)  # a real model's step takes longer than an answer
        assert agent.state is not None
        assert agent.state.cf == 4
    assert not (tmp_path / "mine" / CONTROL_TOKEN_NAME).exists()


def test_steering_needs_a_controller_that_the_agent_starts() -> None:
    for controller in ("none", "http://127.0.0.1:8756"):
        with pytest.raises(SetupError, match=r"steering='owner' .*gravac serve --owner-may-steer"):
            load(steering="owner", controller=controller)


def test_a_later_chdir_does_not_split_the_journal(
    world_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("begun", "later"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "begun")
    module, optimizer = pair()
    with Agent(
        module, optimizer, controller=None, data_dir="runs", job="mine", policy="static:cf=10", window=1
    ):
        step(module, optimizer)
        monkeypatch.chdir(tmp_path / "later")
        for _ in range(3):
            step(module, optimizer)
    assert list((tmp_path / "later").iterdir()) == []
    records = [line.record for line in read_trace(tmp_path / "begun/runs/mine/journal.jsonl")]
    assert [type(record) for record in records].count(WindowReport) >= 3
    assert isinstance(records[-1], End)


def test_a_working_folder_that_is_gone(
    world_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    module, optimizer = pair()
    for controller in (None, "auto"):
        with pytest.raises(
            SetupError,
            match=r"data_dir='gravac-runs' is relative, and the working folder is gone: .*absolute path",
        ):
            Agent(module, optimizer, controller=controller).__enter__()
    with Agent(module, optimizer, controller=None, data_dir=tmp_path / "runs", job="mine"):
        step(module, optimizer)
    assert check(tmp_path / "runs/mine/journal.jsonl").ok


@pytest.mark.parametrize("blocked", ["runs", "runs/mine"])
@pytest.mark.distributed
def test_closing_does_not_wait_for_a_controller_that_cannot_start(
    world_of_one: None, tmp_path: Path, blocked: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that cannot be written; for root too, because a file has its name."""
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).touch()
    module, optimizer = pair()
    with Agent(
        module, optimizer, data_dir=tmp_path / "runs", job="mine", policy="static:cf=10", window=1
    ) as agent:
        until = time.monotonic() + 60
        while "all ranks go dense" not in caplog.text and time.monotonic() < until:
            step(module, optimizer)
        began = time.monotonic()
        agent.close()
        assert time.monotonic() - began < 12
    assert "the journal of job mine lacks" in caplog.text


def test_an_agent_under_inference_mode(world_of_one: None, tmp_path: Path) -> None:
    """Its tensors were inference tensors, and the first step failed after "the training goes on"."""
    module, optimizer = pair()
    state: dict[str, Any] = {}
    for part in range(2):
        agent = Agent(module, optimizer, controller=None, data_dir=tmp_path / str(part), policy="static:cf=2")
        with torch.inference_mode():
            agent.start()
            if part:
                agent.load_state_dict(state)
        for number in range(4):
            step(module, optimizer)
            if number == 1:
                with torch.inference_mode():
                    agent.switch(memory="conef")
        with torch.inference_mode():
            state = agent.state_dict()
            agent.close()
    step(module, optimizer)  # takes what waited
