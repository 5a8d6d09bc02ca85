"""The description of a job in its trace: the commit of its script, its settings, and no secret."""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac import optim
from gravac_agent.settings import AgentSettings, load
from gravac_agent.setup import describe
from tools.harness.builders import spec


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git (Debian: apt-get install git)")
def test_the_commit_is_that_of_the_script_not_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "project" / "deep" / "train.py"
    script.parent.mkdir(parents=True)
    script.touch()
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path / "project"), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(tmp_path / "project"), "rev-parse", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    )
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert describe.revision() == head.stdout.strip()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert describe.revision() is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe.revision() is None


def test_a_git_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(describe, "GIT_SECONDS", 0.2)
    assert describe.revision() is None


def test_all_settings_are_recorded_except_secrets_and_places() -> None:
    recorded = load(token="secret-0123456789", job="a", levels="flat").described()
    assert (recorded["levels"], recorded["nonfinite"]) == ("flat", "skip")
    assert "secret" not in str(recorded)
    own_fields = {"enabled", "compressor", "memory", "policy", "window", "job", "link"}
    assert set(AgentSettings.model_fields) - set(recorded) == own_fields | {
        "token",
        "data_dir",
        "controller",
        "page_port",
        "steering",
        "sink",
    }


class Lamb(torch.optim.Optimizer):
    """As libraries name it; without learning rate and betas in its groups."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})


class SignSGD(torch.optim.SGD):
    """Its name holds that of another kind."""


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": -1.0, "momentum": "0.x", "weight_decay": None})


class MuonWithAuxAdam(Muon):
    """Its name holds that of another kind."""


class MyTrainersOptimizer(torch.optim.AdamW):
    """The kind is that of the class it derives from."""


class Wrapper:
    def __init__(self, optimizer: object) -> None:
        self.optimizer, self.param_groups = optimizer, getattr(optimizer, "param_groups", [])


def test_optimizers_are_described() -> None:
    weights = [torch.zeros(2, requires_grad=True)]

    def found(optimizer: object) -> tuple[object, ...]:
        one = describe.optimizer_spec(optimizer)
        return (one.name, one.kind, one.learning_rate, one.momentum, one.weight_decay)

    sgd = torch.optim.SGD(weights, lr=0.5, momentum=0.9, weight_decay=1e-4)
    assert found(sgd) == ("SGD", "sgd", 0.5, 0.9, 1e-4)
    assert found(torch.optim.AdamW(weights, lr=torch.tensor(0.25), betas=(0.8, 0.99), weight_decay=0.0)) == (
        *("AdamW", "adam", 0.25, 0.8, 0.0),
    )
    assert found(Wrapper(Wrapper(sgd))) == found(sgd)
    assert found(Lamb(weights)) == ("Lamb", "adam", None, None, None)
    assert found(SignSGD(weights, lr=1.0))[:2] == ("SignSGD", "sign")
    assert found(Muon(weights)) == ("Muon", "matrix", None, None, None)
    assert found(MuonWithAuxAdam(weights))[:2] == ("MuonWithAuxAdam", "matrix")
    assert found(MyTrainersOptimizer(weights))[:2] == ("MyTrainersOptimizer", "adam")
    assert found(optim.AdamW(weights, lr=0.25))[:4] == ("gravac.optim.AdamW", "adam-aged", 0.25, 0.9)
    assert found(Wrapper(optim.Adam(weights)))[:2] == ("gravac.optim.Adam", "adam-aged")
    assert found(optim.AdamW(weights, betas=(0.5, 0.95)))[1] == "adam-low-beta"
    assert found(torch.optim.Adam(weights, betas=(0.6, 0.95)))[1:4:2] == ("adam-low-beta", 0.6)
    assert found(torch.optim.NAdam(weights, betas=(0.5, 0.95)))[1] == "adam", "nothing was simulated"
    for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Adamax):
        assert found(kind(weights))[1] == "adam"
    for unlike in (torch.optim.LBFGS, torch.optim.Rprop):
        assert found(unlike(weights))[1] == "other", "nothing of its kind was simulated"
    itself = Wrapper(None)
    itself.optimizer = itself
    assert found(itself)[:2] == ("Wrapper", "other"), "a wrapper of itself ends"


def test_of_several_optimizers_the_most_careful_that_matters_counts() -> None:
    few, some, many = ([torch.zeros(size, requires_grad=True)] for size in (5, 40, 60))

    def kind(*optimizers: torch.optim.Optimizer) -> tuple[str, str]:
        one = describe.optimizer_spec(*optimizers)
        return one.name, one.kind

    muon, adam = Muon(some), torch.optim.AdamW(many)
    assert kind(muon, adam) == ("Muon, AdamW", "matrix"), "though AdamW steps more"
    assert kind(Muon(few), adam) == ("Muon, AdamW", "adam"), "less than a tenth"
    assert kind(optim.AdamW(some), torch.optim.SGD(many, lr=1.0))[1] == "adam-aged"
    assert kind(optim.AdamW(many), adam)[1] == "adam"
    assert kind(Muon(many), torch.optim.Rprop(some))[1] == "other", "of which nothing is known"


def test_a_job_ages_only_where_all_its_optimizers_do() -> None:
    """By this, ranks choose owners for coarse values, which under SGD lose more than a gather."""
    few, many = ([torch.zeros(size, requires_grad=True)] for size in (40, 60))

    def aged(*optimizers: torch.optim.Optimizer) -> bool:
        return spec(optimizer=describe.optimizer_spec(*optimizers)).aged

    assert aged(optim.AdamW(few))
    assert aged(optim.AdamW(few), optim.Adam(many))
    assert not aged(optim.AdamW(many), torch.optim.SGD(few, lr=1.0)), "though its kind is that of AdamW"
    assert not aged(optim.AdamW(few, betas=(0.5, 0.99)))
    assert not aged(torch.optim.AdamW(few))
    assert not spec().aged


def test_a_job_is_named_after_the_experiment_of_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real package: ``tests/frameworks/test_ray.py``."""
    train = ModuleType("ray.train")
    train.get_context = lambda: SimpleNamespace(get_experiment_name=lambda: "my experiment")  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "argv", ["default_worker.py"])
    monkeypatch.setitem(sys.modules, "ray.train", train)
    assert describe.job_name().startswith("my-experiment-")

    def outside() -> None:
        raise RuntimeError("not in a worker")

    train.get_context = outside  # type: ignore[attr-defined]
    assert describe.job_name().startswith("default_worker-")


@pytest.mark.parametrize(("width", "megabytes"), [(256, 1), (512, 2), (700, None), (8, None)])
@pytest.mark.usefixtures("world_of_one")
def test_buckets_are_counted_as_ddp_makes_them(width: int, megabytes: int | None) -> None:
    module = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(width, width) for _ in range(6))), bucket_cap_mb=megabytes
    )
    counts = list[int]()

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        counts.append(bucket.index() + 1)
        done = torch.futures.Future[Tensor]()
        done.set_result(bucket.buffer())
        return done

    module.register_comm_hook(None, hook)
    for _ in range(3):  # DDP orders its buckets after the first step
        module(torch.ones(1, width)).sum().backward()
    found = describe.bucket_count(module, [each for each in module.parameters() if each.requires_grad])
    assert found == counts[-1]
