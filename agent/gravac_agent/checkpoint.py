"""The agent's state as plain tensors, numbers and strings: loads with ``torch.load(weights_only=True)``."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from gravac.memories import reshard
from gravac_agent.errors import SetupError
from gravac_agent.loop import StepLoop
from gravac_agent.plan import Directive, Plan

VERSION = 1


def save(loop: StepLoop, rank: int, world_size: int, policy_state: str | None) -> dict[str, Any]:
    """Where this rank's loop stands; residuals and bucket layout are the caller's."""
    return {
        "version": VERSION,
        "rank": rank,
        "world_size": world_size,
        "step": loop.step,
        "window": loop.window.number,
        "plan": _plain(loop.plan),
        "following": _plain(loop.following),
        "gain_averages": {str(cf): list(pair) for cf, pair in loop.tracker.averages.items()},
        "policy_state": policy_state,
    }


def load(
    state: dict[str, Any] | Sequence[dict[str, Any]], loop: StepLoop, rank: int, world_size: int
) -> dict[str, Tensor]:
    """Put ``loop`` where the state was taken; returns the residual for this rank.

    One state: this rank's own, from a run with as many ranks. A sequence: the states of *all* ranks of the earlier run,
    for any number of ranks now (the mean residual goes to each, which conserves it). Raises SetupError otherwise.
    """
    states = [state] if isinstance(state, dict) else list(state)
    for one in states:
        if one.get("version") != VERSION:
            raise SetupError(f"agent state has version {one.get('version')!r}, this gravac reads {VERSION}")
    if isinstance(state, dict):
        if state["world_size"] != world_size:
            raise SetupError(
                f"agent state is of a run with {state['world_size']} ranks, this one has {world_size}: "
                "pass the states of all its ranks as a list, so that no residual is lost"
            )
        if state["rank"] != rank:
            raise SetupError(f"agent state is of rank {state['rank']}, this is rank {rank}: load your own")
        residual = state["residual"]
    else:
        if not states or sorted(one["rank"] for one in states) != list(range(states[0]["world_size"])):
            have = [one["rank"] for one in states]
            raise SetupError(f"pass the states of all ranks of the earlier run; these are of ranks {have}")
        residual = reshard([one["residual"] for one in states])
    first = states[0]
    loop.restore(_plan(first["plan"]), _plan(first["following"]), first["step"], first["window"])
    loop.tracker.averages = {float(cf): (pair[0], pair[1]) for cf, pair in first["gain_averages"].items()}
    return residual  # type: ignore[no-any-return]


def _plain(plan: Plan) -> dict[str, Any]:
    return {"cf": plan.cf, **asdict(plan.directive)}


def _plan(state: dict[str, Any]) -> Plan:
    fields = dict(state)
    return Plan(cf=fields.pop("cf"), directive=Directive(**fields))
