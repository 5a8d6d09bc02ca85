"""Checkpoints by torch.distributed.checkpoint: the states of all ranks in one folder."""

import logging
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from gravac import LoadPlanner
from gravac_agent import Agent
from gravac_agent.state.by_rank import unpack
from tests.ranks.scenarios.model import Lines, fingerprint, flat, train, wrapped
from tests.ranks.scenarios.sharded import loss_of, same, sharded, shards

OPTIONS: dict[str, Any] = {"controller": None, "policy": "static:cf=25", "window": 5}


class App:
    """Model, optimizer and agent as one Stateful, as the documentation of DCP recommends."""

    def __init__(
        self, module: DistributedDataParallel, optimizer: torch.optim.Optimizer, agent: Agent
    ) -> None:
        self.module, self.optimizer, self.agent = module, optimizer, agent

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.module, self.optimizer)
        return {"model": model, "optimizer": optimizer, "agent": self.agent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.module,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.agent.load_state_dict(state["agent"])


def job(folder: str, name: str, **options: Any) -> App:
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    if options.get("memory", "").startswith("momentum"):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    return App(module, optimizer, Agent(module, optimizer, data_dir=folder, job=name, **OPTIONS | options))


def resumed_from_dcp(rank: int, world: int, folder: str, nested: bool, **options: Any) -> dict[str, Any]:
    """20 steps in one go, and with a checkpoint of all ranks in one folder after 10 of them."""
    path = f"{folder}/checkpoint"
    app = job(folder, "whole", **options)
    with app.agent:
        train(app.module, app.optimizer, rank, range(10))
        if nested:
            dcp.save(_state(app, nested), checkpoint_id=path)
        else:
            saving = dcp.async_save(_state(app, nested), checkpoint_id=path)
        train(app.module, app.optimizer, rank, range(10, 20))
        if not nested:
            saving.result()  # type: ignore[union-attr]
        buckets = len(app.agent._session.layout) if app.agent._session else 0
    whole = fingerprint(app.module)
    app = job(folder, "again", **options)
    with app.agent:
        state = _state(app, nested)
        dcp.load(state, checkpoint_id=path, planner=LoadPlanner())
        _loaded(app, state, nested)
        train(app.module, app.optimizer, rank, range(10, 20))
    resumed = fingerprint(app.module)
    app, error = job(folder, "plain", **options), ""
    with app.agent:
        try:
            dcp.load({"agent": app.agent} if not nested else {"app": app}, checkpoint_id=path)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
    return {"whole": whole, "resumed": resumed, "buckets": buckets, "without planner": error}


def resharded(
    rank: int, world: int, folder: str, load: str, save: str, first: int, **options: Any
) -> dict[str, Any]:
    """Load a checkpoint of another number of ranks, train 10 steps and save one; returns mean residuals by their sum.

    ``load``: none at the beginning.
    """
    app, loaded = job(folder, f"ranks{world}-{first}", **options), 0.0
    with app.agent:
        before = None
        if load:
            dcp.load({"app": app}, checkpoint_id=f"{folder}/{load}", planner=LoadPlanner())
            before = torch.load(f"{folder}/{load}.mean.pt", weights_only=True)
            mean = mean_residual(app.agent)
            loaded = max(float((mean[name] - before[name]).abs().max()) for name in before)
            assert before.keys() == mean.keys()
        train(app.module, app.optimizer, rank, range(first, first + 10))
        dcp.save({"app": app}, checkpoint_id=f"{folder}/{save}")
        mean = mean_residual(app.agent)
        if rank == 0:
            torch.save(mean, f"{folder}/{save}.mean.pt")
            dcp_to_torch_save(f"{folder}/{save}", f"{folder}/{save}.pt")
        dist.barrier()
        whole = torch.load(f"{folder}/{save}.pt", weights_only=True)["app"]["agent"]
        step = app.agent.state.step if app.agent.state else -1
    largest = max(float(value.abs().max()) for value in mean.values())
    return {
        "moved": loaded,
        "largest": largest,
        "step": step,
        "ranks": sorted(one["rank"] for one in unpack(whole)),
    }


def elastic(
    rank: int, world: int, folder: str, load: str, save: str, controller: str | None
) -> dict[str, Any]:
    """A part of a job under the default policy on a slow link, after a checkpoint: its steps and what was held.

    ``load``: none at the beginning.
    """
    lines = Lines()
    app = job(folder, "elastic", policy="auto", link="4mbit", controller=controller)
    logging.getLogger("gravac.agent").addHandler(lines)
    first = moved = 0.0
    with app.agent:
        assert app.agent.wait_ready(60)
        if load:
            dcp.load({"app": app}, checkpoint_id=f"{folder}/{load}", planner=LoadPlanner())
            before = torch.load(f"{folder}/{load}.mean.pt", weights_only=True)
            mean = mean_residual(app.agent)
            assert before.keys() == mean.keys()
            moved = max((float((mean[name] - before[name]).abs().max()) for name in before), default=0.0)
            assert app.agent.wait_ready(60)
        first = app.agent.state.step if app.agent.state else -1
        train(app.module, app.optimizer, rank, range(first, first + 20))
        dcp.save({"app": app}, checkpoint_id=f"{folder}/{save}")
        mean = mean_residual(app.agent)
        if rank == 0:
            torch.save(mean, f"{folder}/{save}.mean.pt")
        state = app.agent.state
        assert state is not None
        dist.barrier()
    logging.getLogger("gravac.agent").removeHandler(lines)
    held = max((float(value.abs().max()) for value in mean.values()), default=0.0)
    return {
        "job": state.job,
        "steps": [first, state.step],
        "phase": state.phase,
        "codec": state.codec,
        "moved": moved,
        "held": held,
        "logged": lines.texts,
    }


def rank_0_moves(rank: int, world: int, folder: str, machines: list[str], controller: str | None) -> None:
    """10 steps on each machine, from the checkpoint of the one before. A machine has a data folder of its own."""
    for number, machine in enumerate(machines):
        app = job(f"{folder}/{machine}", "moves", controller=controller)
        with app.agent:
            if number:
                dcp.load({"app": app}, checkpoint_id=f"{folder}/{number - 1}", planner=LoadPlanner())
            assert app.agent.wait_ready(60)
            dist.barrier()
            train(app.module, app.optimizer, rank, range(10 * number, 10 * number + 10))
            dcp.save({"app": app}, checkpoint_id=f"{folder}/{number}")
            train(app.module, app.optimizer, rank, range(10 * number + 10, 10 * number + 16))
        dist.barrier()


def without_an_agent(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A checkpoint saved before the agent was there, and one of an agent that was not enabled."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gravac.agent").addHandler(handler)
    found = []
    app = job(folder, "off", enabled=False)
    with app.agent:
        train(app.module, app.optimizer, rank, range(3))
        dcp.save({"model": app.module.state_dict()}, checkpoint_id=f"{folder}/model")
        dcp.save({"model": app.module.state_dict(), "agent": app.agent}, checkpoint_id=f"{folder}/off")
    for path in ("model", "off"):
        messages.clear()
        app = job(folder, path)
        with app.agent:
            state = {"model": app.module.state_dict(), "agent": app.agent}
            dcp.load(state, checkpoint_id=f"{folder}/{path}", planner=LoadPlanner())
            train(app.module, app.optimizer, rank, range(3))
            if path == "off":
                dcp.save({"agent": app.agent}, checkpoint_id=f"{folder}/on")
        found.append("; ".join(message for message in messages if "no state of this agent" in message))
    messages.clear()
    app = job(folder, "off-again", enabled=False)
    with app.agent:
        dcp.load({"agent": app.agent}, checkpoint_id=f"{folder}/on", planner=LoadPlanner())
        train(app.module, app.optimizer, rank, range(3))
    logging.getLogger("gravac.agent").removeHandler(handler)
    return {"warned": found, "not enabled": "; ".join(messages)}


def loads_wrongly(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Rank 1 loads another state than rank 0: what both say, and whether they train as if nobody had loaded any."""
    options: dict[str, Any] = {"policy": "static:cf=8,epsilon=0", "compressor": "topk"}
    saved: dict[int, Any] = {}
    app = job(folder, "saved", **options)
    with app.agent:
        for step in (5, 10):
            train(app.module, app.optimizer, rank, range(step - 5, step))
            saved[step] = flat(app.agent)
    app = job(folder, "fresh", **options)
    with app.agent:
        train(app.module, app.optimizer, rank, range(4))
    fresh, errors = fingerprint(app.module), {}
    app = job(folder, "wrong", **options)
    with app.agent:
        for name, changed in WRONG.items():
            state = saved[5 if name == "age" and rank == 1 else 10]
            try:
                app.agent.load_state_dict(changed(state) if rank == 1 else state)
            except Exception as caught:
                errors[name] = f"{type(caught).__name__}: {caught}"
        train(app.module, app.optimizer, rank, range(4))
    same, app = fingerprint(app.module) == fresh, job(folder, "wrong", **options)
    with app.agent:  # nobody left the lock
        app.agent.load_state_dict(saved[10])
        step = app.agent.state.step if app.agent.state else -1
    return {"errors": errors, "same": same, "step": step}


def _with(place: str, value: Any) -> Any:
    """What puts ``value`` into a state; ``place`` is a key, or two with a dot between them."""

    def changed(state: dict[str, Any]) -> dict[str, Any]:
        key, _, inner = place.partition(".")
        return {**state, key: {**state[key], inner: value} if inner else value}

    return changed


def _residual(change: Any) -> Any:
    def changed(state: dict[str, Any]) -> dict[str, Any]:
        name, value = next(iter(state["residual"].items()))
        return {**state, "residual": {**state["residual"], name: change(value)}}

    return changed


NAN, HUGE = float("nan"), 1e300
WRONG: dict[str, Any] = {
    "age": lambda state: state,
    "none": lambda state: {},
    "buckets": lambda state: {**state, "buckets": state["buckets"][::-1]},
    "network": _with("network", {"latency_seconds": 0.5, "bytes_per_second": 1e3}),
    "network numbers": _with("network", {"latency_seconds": NAN, "bytes_per_second": -1.0}),
    "gains": _with("gain_averages", {"8.0": [0.5, 1.0]}),
    "gain numbers": _with("gain_averages", {"8.0": [NAN, 1.0]}),
    "short residual": _residual(lambda value: value[:-1]),
    "long residual": _residual(lambda value: torch.cat((value, value))),
    "nan residual": _residual(lambda value: value * NAN),
    "huge residual": _residual(lambda value: torch.full_like(value, 3e38)),
    "unknown residual": _with("residual.of_nothing", torch.zeros(3)),
    "text for a residual": _residual(lambda value: "residual"),
    "step nan": _with("step", NAN),
    "step negative": _with("step", -1),
    "step huge": _with("step", 2**60),
    "step text": _with("step", "10"),
    "window bool": _with("window", True),
    "window negative": _with("window", -3),
    "plan cf": _with("plan.cf", HUGE),
    "plan nan": _with("plan.cf_candidate", NAN),
    "plan epoch": _with("following.epoch", -1),
    "plan phase": _with("following.phase", "asleep"),
    "plan limit": _with("plan.limit_seconds", NAN),
    "plan back": _with("following.back_cf", 0.5),
    "gone back": _with("gone_back", {"cf": 1.0}),
    "plan field": _with("following.colour", "red"),
    "rates": _with("rates", [1.0, NAN]),
    "no rates": _with("rates", []),
    "rates huge": _with("rates", [1.0, HUGE]),
    "rates tiny": _with("rates", [1.0, 1e-300]),
    "loss scale huge": _with("rates", [HUGE, 0.05]),
    "rates bool": _with("rates", [True, 0.05]),
    "rates text": _with("rates", "rates"),
    "plan steps": _with("plan.window_steps", 0.0),
    "plan steps empty": _with("following.window_steps", []),
    "empty bucket": lambda state: {**state, "buckets": [[], *state["buckets"]]},
    "doubled bucket": lambda state: {**state, "buckets": [*state["buckets"], state["buckets"][0]]},
    "doubled name": lambda state: {**state, "buckets": [state["buckets"][0] * 2, *state["buckets"][1:]]},
    "buckets of text": _with("buckets", ["name"]),
    "no list of buckets": _with("buckets", None),
    "clipping": _with("clipping", [-1.0, 0.0, NAN, 0.0]),
    "learnt": _with("learnt", {"weight": torch.full((2,), NAN)}),
    "policy state": _with("policy_state", 7),
    "world size": _with("world_size", 2**60),
}


def mean_residual(agent: Agent) -> dict[str, torch.Tensor]:
    """The mean of the residual over ranks, in double precision."""
    mean = {}
    for name, value in sorted(flat(agent)["residual"].items()):
        total = value.double()
        dist.all_reduce(total)
        mean[name] = total / dist.get_world_size()
    return mean


def _state(app: App, nested: bool) -> dict[str, Any]:
    if nested:
        return {"app": app}
    model, optimizer = get_state_dict(app.module, app.optimizer)
    return {"model": model, "optimizer": optimizer, "agent": app.agent}


def _loaded(app: App, state: dict[str, Any], nested: bool) -> None:
    if not nested:
        set_state_dict(
            app.module,
            app.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def sharded_from_dcp(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A sharded model, its optimizer and the agent in one checkpoint: 20 steps in one go, and resumed after 10."""

    def make(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Agent]:
        model = sharded(world)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return (
            model,
            optimizer,
            Agent(model, optimizer, job=name, data_dir=folder, **OPTIONS, collective="auto"),
        )

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, some: range) -> None:
        for step in some:
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, agent: Agent) -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "agent": agent}

    model, optimizer, agent = make("whole")
    with agent:
        steps(model, optimizer, range(10))
        residual = max(float(value.abs().max()) for value in flat(agent)["residual"].values())
        dcp.save(state_of(model, optimizer, agent), checkpoint_id=f"{folder}/sharded")
        steps(model, optimizer, range(10, 20))
    whole = shards(model)
    model, optimizer, agent = make("again")
    with agent:
        state = state_of(model, optimizer, agent)
        dcp.load(state, checkpoint_id=f"{folder}/sharded", planner=LoadPlanner())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        steps(model, optimizer, range(10, 20))
    return {"same": same(whole, shards(model)), "residual": residual}
