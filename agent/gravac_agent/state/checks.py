"""What the numbers and residuals of a saved state may be, so that nothing in it can break a run that loads it."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from gravac.memories.base import overflown
from gravac.memories.states import TAG, VELOCITY, geometry_of
from gravac.protocol import Decision
from gravac.wording import validator_message
from gravac_agent.errors import SetupError
from gravac_agent.exchange.hook import real_shape
from gravac_agent.exchange.host_level import HostLevel, piece_shape
from gravac_agent.fsdp.groups import CALL, PIECE
from gravac_agent.fsdp.model import DataParallel, ShardedModel

_OF_TRIAL = {"limit_seconds": "step_seconds", "back_cf": "cf", "back_codec": "codec"}
"""Words of a plan, and what a decision's trial calls them."""
MOST_STEPS = 2**48
"""More than any run takes, and few enough to be counted on from in every record."""
SMALLEST_RATE, LARGEST_RATE, LARGEST_SCALE = 1e-30, 1e15, 1e38
"""Range of learning rates above 0, and of a loss scale."""


def check_numbers(state: Mapping[str, Any], fields: Collection[str]) -> None:
    """Check that a state has all these fields, and their numbers. Raises SetupError, which names the field."""
    missing = sorted(set(fields) - state.keys())
    if missing:
        raise SetupError(
            f"the agent state lacks {', '.join(map(repr, missing))}: it is damaged, or of another version of gravac; "
            "load another checkpoint, or start without loading it"
        )
    for name, least, most in (("world_size", 1, 2**20), ("rank", 0, 2**20)):
        _whole(name, state[name], least, most)
    for name in ("step", "window"):
        _whole(name, state[name], 0, MOST_STEPS)
    for name in ("plan", "following", "gone_back"):
        if name != "gone_back" or state[name] is not None:
            _check_plan(name, dict(state[name]))
    learnt = {"": state, **{f"other_codecs.{codec}.": one for codec, one in state["other_codecs"].items()}}
    for prefix, one in learnt.items():
        for cf, pair in one["gain_averages"].items():
            _numbers(f"{prefix}gain_averages", [float(cf), *pair])
        for name, value in one["learnt"].items():
            if not isinstance(value, Tensor) or (
                value.is_floating_point() and not bool(torch.isfinite(value).all())
            ):
                raise SetupError(_said(f"{prefix}learnt.{name}", value, "a tensor of finite numbers"))
    _check_rates(state["rates"])
    _check_buckets(state["buckets"])
    mean_sq, single_sq, usual, residual_sq = state["clipping"]
    _numbers("clipping", [mean_sq, single_sq])
    if not (isinstance(usual, float) and isinstance(residual_sq, float)) or min(usual, residual_sq) < 0.0:
        raise SetupError(_said("clipping", state["clipping"], "four numbers of at least 0"))
    if not isinstance(state["policy_state"], str | None):
        raise SetupError(_said("policy_state", state["policy_state"], "text, or None"))


def check_residual(residual: Mapping[str, Tensor], module: DataParallel, host: HostLevel | None) -> None:
    """Check that residuals are of parameters of this module, as long as they are, and can be added to gradients.

    With a ``host`` they are of its pieces of the parameters.

    Raises SetupError, which names the parameter.
    """
    geometry = geometry_of(residual)
    for name, value in residual.items():
        if name != TAG and (
            not isinstance(value, Tensor) or not value.is_floating_point() or overflown(value)
        ):
            raise SetupError(_said(f"residual of {name!r}", value, "a tensor of finite numbers below 1e37"))
    found = {name.removeprefix(VELOCITY): value.numel() for name, value in residual.items() if name != TAG}
    here = _lengths(module, host)
    for name, length in (found if geometry is None else geometry.numels).items():
        parameter = name.partition(PIECE)[0].partition(CALL)[0] if isinstance(module, ShardedModel) else name
        if here.get(parameter) != length:
            there = "is not in the module" if parameter not in here else f"takes {here[parameter]} here"
            raise SetupError(
                f"the agent state has a residual of {length} elements for {name!r}, which {there}: load the state "
                "that was saved with this model"
            )


def _lengths(module: DataParallel, host: HostLevel | None) -> dict[str, int]:
    """Return the elements of each parameter's residual; of each piece, where gradients are divided."""
    if isinstance(module, ShardedModel) and host is None:
        return {name: length for group in module.groups for name, length in group.lengths()}
    ranks = 1 if host is None else host.ranks
    shapes = {name: real_shape(one) for name, one in module.module.named_parameters()}
    return {name: math.prod(piece_shape(shape, ranks)) for name, shape in shapes.items()}


def _check_rates(rates: object) -> None:
    """The residual is multiplied by their changes, and must stay finite and above 0."""
    _numbers("rates", rates)
    assert isinstance(rates, list | tuple)
    if not rates or not SMALLEST_RATE <= rates[0] <= LARGEST_SCALE:
        wanted = f"a loss scale from {SMALLEST_RATE:g} to {LARGEST_SCALE:g}, then the rates"
        raise SetupError(_said("rates", rates, wanted))
    if not all(rate == 0.0 or SMALLEST_RATE <= rate <= LARGEST_RATE for rate in rates[1:]):
        raise SetupError(_said("rates", rates, f"rates of 0, or from {SMALLEST_RATE:g} to {LARGEST_RATE:g}"))


def _check_buckets(buckets: object) -> None:
    """Check the buckets of a state. A run knows none before its first step."""
    wanted = "lists of names of parameters, each in one of them"
    if not isinstance(buckets, list) or not all(isinstance(names, list) and names for names in buckets):
        raise SetupError(_said("buckets", buckets, wanted))
    every = [name for names in buckets for name in names]
    if not all(isinstance(name, str) for name in every) or len(set(every)) < len(every):
        raise SetupError(_said("buckets", buckets, wanted))


def _check_plan(name: str, plan: dict[str, Any]) -> None:
    cf, window_steps = plan.pop("cf"), plan.pop("window_steps")
    trial = {key: plan.pop(word) for word, key in _OF_TRIAL.items()}
    # 0: the job's.
    own = type(window_steps) is int and window_steps == 0
    given = plan | {"window_steps": None if own else window_steps, "trial": trial}
    try:
        decision = Decision(window=-1, rule="start", reason="", **given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        wanted = validator_message(first["msg"]).removeprefix("must be ")
        raise SetupError(_said(f"{name}.{field}", first["input"], wanted)) from None
    if cf not in (1.0, decision.cf_minimum, decision.cf_candidate):
        raise SetupError(_said(f"{name}.cf", cf, "1 or a CF of the plan"))


def _whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise SetupError(_said(name, value, f"a whole number from {least} to {most}"))


def _numbers(name: str, values: object) -> None:
    if not isinstance(values, list | tuple) or not all(
        type(value) in (float, int) and 0.0 <= value < math.inf for value in values
    ):
        raise SetupError(_said(name, values, "finite numbers of at least 0"))


def _said(name: str, value: object, wanted: str) -> str:
    return (
        f"the agent state has {name}={value!r:.80}, which must be {wanted}: it is damaged, so load another checkpoint, "
        "or start without loading it"
    )
