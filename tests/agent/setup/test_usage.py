"""What an agent is attached to is checked before anything starts; each error says what to do."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from gravac import optim
from gravac.policies import DensePolicy
from gravac_agent import Agent, SetupError
from gravac_agent.setup import usage
from tests.support.small_model import pair, step


@pytest.mark.parametrize(
    ("home", "name", "base", "why"),
    [
        ("deepspeed.runtime.engine", "DeepSpeedEngine", nn.Module, "which reduces gradients itself"),
        ("torch.distributed.fsdp", "FullyShardedDataParallel", nn.Module, "FSDP1"),
        ("torchft.ddp", "DistributedDataParallel", DistributedDataParallel, "torchft decides step by step"),
    ],
)
def test_other_wrappers_are_explained(
    world_of_one: None, home: str, name: str, base: type[nn.Module], why: str
) -> None:
    wrapper = type(name, (base,), {"__module__": home})
    module = wrapper(nn.Linear(4, 2)) if base is DistributedDataParallel else wrapper()
    with pytest.raises(SetupError, match=rf"got {name}.*{why}.*: write Agent\("):
        Agent(module, torch.optim.SGD(nn.Linear(4, 2).parameters(), lr=0.1))


def test_an_optimizer_by_age_with_a_setting_that_it_has_no_step_for(
    world_of_one: None, tmp_path: Path
) -> None:
    module = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = optim.AdamW(module.parameters(), amsgrad=True)
    with (
        pytest.raises(
            SetupError, match=r"AdamW of gravac.optim has amsgrad=True, .*: leave amsgrad out, or use"
        ),
        Agent(module, optimizer, controller=None, data_dir=tmp_path),
    ):
        pass


def test_not_a_ddp_module() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(
        SetupError,
        match=r"Agent wraps .*, or a model after fully_shard \(FSDP2\), got Linear: write Agent",
    ):
        Agent(model, torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]


def test_compiled_but_not_ddp() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(SetupError, match=r"got torch.compile of Linear: write Agent\(Distributed"):
        Agent(torch.compile(model, backend="eager"), torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": None}, r"optimizer=None is not a torch\.optim\.Optimizer: pass the one"),
        (
            {"policy": "observe", "memory": "momentum"},
            r"memory='momentum' changes uncompressed gradients too",
        ),
        ({"scaler": 3}, r"scaler=3 is not a torch\.amp\.GradScaler: pass the one that scales the loss"),
    ],
)
def test_arguments_of_the_wrong_kind(world_of_one: None, wrong: dict[str, Any], message: str) -> None:
    module, optimizer = pair()
    with pytest.raises(SetupError, match=message):
        Agent(**{"module": module, "optimizer": optimizer} | wrong)


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.net = inner


WRONG: dict[str, tuple[Any, str]] = {
    "swapped": (
        lambda m, o: Agent(o, m),
        r"optimizer=DistributedDataParallel is a module: the module comes first",
    ),
    "two optimizers": (lambda m, o: Agent(o, o), r"module=SGD is the optimizer: the module comes first"),
    "wrapper": (
        lambda m, o: Agent(Wrapper(m), o),
        r"got Wrapper, which has one inside: write Agent\(model\.net, ",
    ),
    "list": (lambda m, o: Agent(m, [[o, o]]), r"optimizer= is a list of 2 \(SGD, SGD\): pass a list of"),
    "no optimizer": (lambda m, o: Agent(m, []), r"optimizer= is a list of 0"),
    "dict": (lambda m, o: Agent(m, {"a": o}), r"optimizer= is a dict of 1 \(SGD\)"),
    "class": (lambda m, o: Agent(m, torch.optim.SGD), r"optimizer=SGD is a class: make it"),
    "module class": (lambda m, o: Agent(nn.Linear, o), r"module=Linear is a class: make the module"),
    "no module": (lambda m, o: Agent(None, o), r"module=None is not a module: write Agent\(Distributed"),
    "position": (lambda m, o: Agent(m, o, "topk"), r"got 'topk' as well: name it, such as compressor='topk'"),
    "keyword": (
        lambda m, o: Agent(m, o, compresor="topk"),
        r"compresor='topk': .*did you mean 'compressor'\?",
    ),
    "alias": (lambda m, o: Agent(m, o, codec="topk"), r"codec='topk': .*did you mean compressor=\?"),
    "cf": (lambda m, o: Agent(m, o, cf=10), r"cf=10: .*did you mean policy='static:cf=…'\?"),
    "policy": (
        lambda m, o: Agent(m, o, policy=10),
        r"policy=10 is neither a text nor a gravac\.policies\.Policy",
    ),
    "policy class": (
        lambda m, o: Agent(m, o, policy=DensePolicy),
        r"DensePolicy'> .*: make it, DensePolicy\(…\)",
    ),
    "link": (lambda m, o: Agent(m, o, link=1e8), r"link=100000000\.0 is neither a text nor a gravac\.Link"),
    "data_dir": (lambda m, o: Agent(m, o, data_dir=5), r"data_dir=5 is not a path: write a folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named_with_the_fix(world_of_one: None, name: str) -> None:
    made, message = WRONG[name]
    with pytest.raises(SetupError, match=message) as error:
        made(*pair())
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_an_optimizer_that_steps_in_backward(world_of_one: None, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of torch.jit
        from torch.distributed.optim import _apply_optimizer_in_backward

        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    module = DistributedDataParallel(model)
    agent = Agent(module, torch.optim.SGD(module.parameters(), lr=0.1), controller=None, data_dir=tmp_path)
    with pytest.raises(SetupError, match=r"_apply_optimizer_in_backward .*: leave it out"), agent:
        pass


def test_an_optimizer_of_another_model(world_of_one: None, tmp_path: Path) -> None:
    module, _ = pair()
    _, other = pair()
    agent = Agent(module, other, controller=None, data_dir=tmp_path)
    with pytest.raises(SetupError, match="SGD steps none of the module's 2 trainable parameters"), agent:
        pass
    with Agent(module, other, enabled=False):
        pass


def test_an_optimizer_of_some_parameters_is_logged_once(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, _ = pair()
    optimizer = torch.optim.SGD([module.module.bias], lr=0.1)
    with Agent(module, optimizer, controller=None, data_dir=tmp_path):
        step(module, optimizer)
    assert caplog.text.count("the optimizer steps 1 of the module's 2 trainable parameters") == 1


def test_sparse_gradients_do_not_pass_a_momentum_memory(world_of_one: None, tmp_path: Path) -> None:
    module = DistributedDataParallel(nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    agent = Agent(module, optimizer, memory="momentum", controller=None, data_dir=tmp_path)
    with (
        pytest.raises(SetupError, match=r"the sparse gradients of '0\.weight' do not pass through it"),
        agent,
    ):
        pass


def test_uneven_inputs_cannot_change_the_divisor(world_of_one: None, tmp_path: Path) -> None:
    module, optimizer = pair()
    with (
        Agent(module, optimizer, controller=None, data_dir=tmp_path),
        pytest.raises(SetupError, match="divide_by_initial_world_size=False does not work"),
        module.join(divide_by_initial_world_size=False),
    ):
        step(module, optimizer)


def test_the_python_reducer(world_of_one: None, tmp_path: Path) -> None:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):  # type: ignore[attr-defined]
        module, optimizer = pair()
    agent = Agent(module, optimizer, controller=None, data_dir=tmp_path)
    with (
        pytest.raises(SetupError, match=r"'python_reducer' .* set it to 'ddp_optimizer', the default"),
        agent,
    ):
        pass
    with Agent(module, optimizer, enabled=False):
        pass


def test_an_optimizer_of_another_model_ends_no_step(world_of_one: None, tmp_path: Path) -> None:
    module, _ = pair()
    optimizer = torch.optim.SGD([module.module.bias], lr=0.1)  # so the agent looks at all optimizers
    other = torch.optim.SGD([module.module.weight], lr=0.1)
    with Agent(module, optimizer, controller=None, data_dir=tmp_path) as agent:
        module(torch.ones(3, 4)).sum().backward()
        step(*pair())
        assert agent.state is not None
        assert agent.state.step == 0
        other.step()
        assert agent.state.step == 1


def test_gradients_that_are_not_on_the_cpu(world_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module, optimizer = pair()
    elsewhere = [
        nn.Parameter(torch.empty(3, device="meta"))
    ]  # instead of a GPU, which the test machine lacks
    monkeypatch.setattr(module, "parameters", lambda: iter(elsewhere))
    with pytest.raises(
        SetupError, match="are on meta: the agent compresses those on cpu and cuda; pass enabled=False"
    ):
        Agent(module, optimizer)
    Agent(module, optimizer, enabled=False)


def test_a_second_momentum_is_an_error(world_of_one: None, tmp_path: Path) -> None:
    module, _ = pair()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.8)
    agent = Agent(module, optimizer, memory="momentum:momentum=0.9", controller=None, data_dir=tmp_path)
    with (
        pytest.raises(SetupError, match=r"momentum=0\.8 as well: give the optimizer momentum=0"),
        agent,
    ):
        pass


def test_only_plain_adam_is_adapted_and_all_of_it_is_undone() -> None:
    weights = [torch.zeros(2, requires_grad=True)]

    class Own(torch.optim.AdamW):
        pass

    for optimizer, message in (
        (
            torch.optim.SGD(weights, lr=0.1),
            "takes over a torch.optim.AdamW or Adam, .* optimizer=SGD: leave it out",
        ),
        (Own(weights), "no class derived from them, and optimizer=Own"),
        *(
            (
                torch.optim.AdamW(weights, **{name: True}),
                f"optimizer=AdamW has {name}=True, .* leave out {name} or",
            )
            for name in ("amsgrad", "capturable", "differentiable")
        ),
    ):
        with pytest.raises(SetupError, match=message):
            usage.adapted([optimizer])
    adam, sgd = torch.optim.Adam(weights), torch.optim.SGD(weights, lr=0.1)
    undone = [*usage.adapted([sgd, adam]), *usage.adapted([adam])]  # by two agents
    assert type(adam) is optim.Adam
    weights[0].grad = torch.ones(2)
    adam.arrived({weights[0]: torch.tensor([True, False])})  # type: ignore[attr-defined]
    adam.step()
    assert "age" in adam.state[weights[0]]
    for undo in (undone[0], undone[0]):
        undo()
        assert type(adam) is optim.Adam
    undone[1]()
    assert type(adam) is torch.optim.Adam
    assert adam.state[weights[0]].keys() == {"step", "exp_avg", "exp_avg_sq"}
    ours = optim.AdamW(weights)
    usage.adapted([ours])[0]()
    assert type(ours) is optim.AdamW


class Lookahead:
    """Wraps an optimizer, as many copies of Lookahead do, and is none by class."""

    def __init__(self, inner: Any, name: str, groups: Any = None) -> None:
        self.param_groups = inner.param_groups if groups is None else groups
        self.name = name
        setattr(self, name, inner)

    def step(self, closure: Any = None) -> None:
        getattr(self, self.name).step()

    def zero_grad(self) -> None:
        getattr(self, self.name).zero_grad()


class Averaged(Lookahead, torch.optim.Optimizer):
    """One that is an optimizer by class, without torch's ``__init__``, as ``PostLocalSGDOptimizer``."""


INNER = ["optimizer", "optim", "base", "base_optimizer", "original_optimizer"]


@pytest.mark.parametrize("policy", ["observe", "static:cf=2"])
@pytest.mark.parametrize("kind", [Lookahead, Averaged])
@pytest.mark.parametrize("name", INNER)
def test_an_optimizer_around_another_one(
    world_of_one: None, tmp_path: Path, kind: type[Lookahead], name: str, policy: str
) -> None:
    module, optimizer = pair()
    wrapper = kind(kind(optimizer, name), name)
    with Agent(module, wrapper, policy=policy, controller=None, data_dir=tmp_path) as agent:  # type: ignore[arg-type]
        for _ in range(3):
            step(module, wrapper)
        assert agent.state is not None
        assert agent.state.step == 3
        assert agent._parts is not None
        assert agent._parts.spec.optimizer is not None
        assert agent._parts.spec.optimizer.name == "SGD"


def test_torchs_optimizer_around_another_one(world_of_one: None, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch compiles others by what it deprecates
        from torch.distributed.optim import PostLocalSGDOptimizer
    module, optimizer = pair()
    wrapper = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=2, warmup_steps=0))
    with Agent(module, wrapper, controller=None, data_dir=tmp_path) as agent:
        for _ in range(3):
            step(module, wrapper)
        assert agent.state is not None
        assert agent.state.step == 3


def test_an_optimizer_around_one_with_other_groups(world_of_one: None) -> None:
    module, optimizer = pair()
    for kind in (Lookahead, Averaged):
        wrapper = kind(optimizer, "base", [{"params": list(module.parameters()), "lr": 0.1}])
        with pytest.raises(
            SetupError,
            match=rf"optimizer={kind.__name__} wraps a SGD \(\.base\) with other parameter groups.*pass .*\.base\)",
        ):
            Agent(module, wrapper)  # type: ignore[arg-type]


def test_an_optimizer_without_torchs_init(world_of_one: None) -> None:
    module, _ = pair()
    wrapper = Averaged(SimpleNamespace(param_groups=[]), "inside")
    with pytest.raises(SetupError, match=r"optimizer=Averaged .* super\(\).__init__\(params, defaults\)"):
        Agent(module, wrapper)


def test_opacus_averages_by_itself(world_of_one: None) -> None:
    module, optimizer = pair()
    theirs = type("DistributedDPOptimizer", (Averaged,), {"__module__": "opacus.optimizers.ddpoptimizer"})
    mine = type("MyOptimizer", (theirs,), {})
    for kind in (theirs, mine):
        with pytest.raises(
            SetupError, match=rf"optimizer={kind.__name__} .*opacus.* train without the Agent"
        ):
            Agent(module, kind(optimizer, "original_optimizer"))
    for name in ("DifferentiallyPrivateDistributedDataParallel", "GradSampleModule"):
        wrapper = type(name, (Wrapper,), {"__module__": "opacus.distributed"})(nn.Linear(4, 2))
        with pytest.raises(SetupError, match=rf"module={name} .*opacus.* train without the Agent"):
            Agent(wrapper, optimizer)


def test_all_reduce_that_torch_delays(world_of_one: None, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module = DistributedDataParallel(
        model,
        delay_all_reduce_named_params=[("1.weight", model.get_parameter("1.weight"))],
        param_to_hook_all_reduce=model.get_parameter("0.weight"),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with (
        pytest.raises(
            SetupError, match=r"delay_all_reduce_named_params=.* leave it .*out, or pass enabled=False"
        ),
        Agent(module, optimizer, controller=None, data_dir=tmp_path),
    ):
        pass
    with Agent(module, optimizer, enabled=False):
        pass
