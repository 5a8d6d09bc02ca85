"""The agent's state as plain tensors, numbers and strings, which ``torch.load(weights_only=True)`` reads."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gravac import memories
from gravac.aggregators import Aggregator
from gravac.collectives import Network
from gravac.memories import Bucket, Memory
from gravac.policies import DensePolicy
from gravac.signals.gain import GainTracker
from gravac_agent.errors import AgreementError, SetupError
from gravac_agent.exchange.agreement import (
    are_equal,
    check_equal,
    fail_together,
    gather_texts,
    raise_together,
    text_of_first,
)
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.hook import real_shape
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.fsdp.model import DataParallel, ShardedModel
from gravac_agent.fsdp.pieces import divided, fitted, mean_by_shard, shard_of, spread
from gravac_agent.network.probe import AggregatorBuilder
from gravac_agent.reporting.reporter import unfit
from gravac_agent.setup.build import Parts
from gravac_agent.setup.describe import trained_shapes
from gravac_agent.state import by_rank
from gravac_agent.state.checks import check_numbers, check_residual
from gravac_agent.state.rates import LearningRates
from gravac_agent.state.regroup import Regrouper, regrouper

log = logging.getLogger("gravac.agent")

VERSION = 1
FIELDS = (
    *("rank", "world_size", "shard", "step", "window", "plan", "following", "gain_averages", "policy_state"),
    *("policy", "buckets", "shapes", "rates", "clipping", "residual", "compressor", "learnt", "network"),
    *("other_codecs", "gone_back"),
)
"""What a state has besides its version."""
CODECS = ("codec", "back_codec")
"""Fields of a plan that are a codec's number, and in a state its name."""


def save(
    parts: Parts, layout: Sequence[Bucket], module: DataParallel, rates: LearningRates
) -> dict[str, Any]:
    """Return this rank's state between steps.

    Args:
        parts: Parts of the running agent.
        layout: Buckets of the last step.
        module: The DDP module.
        rates: Learning rates and loss scale of the residual.
    """
    loop, channels = parts.loop, parts.channels
    back = loop.schedule.trials.back
    return {
        "version": VERSION,
        "rank": parts.rank,
        "world_size": parts.world_size,
        "step": loop.step,
        "window": loop.window.number,
        "plan": _plain(loop.plan, channels.codecs),
        "following": _plain(loop.schedule.following, channels.codecs),
        "gone_back": None if back is None else _plain(StepPlan(back, back.cf_candidate), channels.codecs),
        "gain_averages": _averages(loop.schedule.tracker, 0),
        "policy": parts.spec.policy.name,
        "policy_state": None if parts.reporter is None else parts.reporter.policy_state,
        "buckets": [list(bucket.names) for bucket in layout],
        "shapes": {name: list(shape) for name, shape in trained_shapes(module).items()},
        "shard": shard_of(module, parts.host),
        "rates": rates.state(),
        "clipping": loop.clipper.state(),
        "residual": channels.memory.state_dict(),
        "compressor": channels.compressor,
        "learnt": channels.aggregator.state_dict(),
        "other_codecs": {
            codec: {
                "learnt": aggregator.state_dict(),
                "gain_averages": _averages(loop.schedule.tracker, number),
            }
            for number, (codec, aggregator) in enumerate(
                zip(channels.codecs, channels.aggregators, strict=True)
            )
            if number
        },
        "network": None if parts.builder.network is None else asdict(parts.builder.network),
    }


def load_everywhere(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    parts: Parts,
    module: DataParallel,
    rates: LearningRates,
) -> Regrouper | None:
    """Restore states on all ranks, or on none of them. All ranks call it, between steps.

    Args:
        state: This rank's own, of a run with the same number of ranks; or the states of *all* ranks of the earlier run,
            for any number of ranks now. Then each rank gets the mean residual, which conserves their sum over ranks.
        parts: Parts of the running agent.
        module: The DDP module.
        rates: Learning rates and loss scale of the residual.

    Returns:
        The regrouper of the first step's buckets; None where they need none.

    Raises:
        SetupError: On all ranks, when a state does not fit on one. Nothing changed.
        AgreementError: On all ranks, when their states are of different steps. Nothing changed.
    """
    found = problem = None
    learnt = ""
    # A rank that does not load is in its first step: ``raise_together`` looks like that step's tick.
    statistics = len(parts.channels.aggregators[parts.loop.plan.codec].local_statistics())
    try:
        states = by_rank.unpack(state)
        if states:
            found = read(_wanted(states, parts, module, isinstance(state, Mapping)), parts, module)
    except SetupError as error:
        problem = str(error)
    except Exception as error:
        log.debug("loading failed", exc_info=True)
        problem = f"the agent state cannot be loaded: {type(error).__name__}: {error}"

    def agree() -> None:
        nonlocal learnt
        raise_together(problem, "load_state_dict", parts.executor.tick_codec, statistics, parts.tick_group)
        check_equal({"step": None} if found is None else found.facts(), parts.tick_group, "checkpoint")
        if found is not None:
            learnt = _agreed(found.aggregators, shard_of(module, parts.host), parts.tick_group)
        with fail_together(parts.tick_group):
            if found is not None and parts.reporter is not None:
                parts.reporter.resume(found.first["policy_state"], found.first["window"])
        # The job of the checkpoint, where that is another one.
        name = "" if parts.reporter is None else parts.reporter.job
        parts.loop.reports.job = text_of_first(name, parts.tick_group)

    parts.executor.run(agree)
    if found is not None:
        return _restore(found, parts, module, rates, learnt)
    log.warning(
        "the checkpoint has no state of this agent: residual, plan and gains start from zero, and what the earlier run "
        "had not sent yet is lost"
    )
    return None


def warn_of_unused(state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Warn when an agent with ``enabled=False`` is given a residual, which plain DDP never sends."""
    if by_rank.has_residual(state):
        log.warning(
            "enabled=False: the checkpoint's residual, which the earlier run had not sent yet, is lost"
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state that was read, and parts that have it. Nothing of the running agent has changed."""

    first: Mapping[str, Any]
    """The state: this rank's own, or that of the earlier run's rank 0."""
    plan: StepPlan
    following: StepPlan
    gone_back: Directive | None
    averages: dict[tuple[int, float], tuple[float, float]]
    memory: Memory
    builder: AggregatorBuilder
    aggregators: list[Aggregator]
    regrouper: Regrouper | None
    undivided: bool
    """Whether the memory has whole parameters, which the ranks of this host have still to divide."""

    def facts(self) -> dict[str, object]:
        """Return what must be the same on all ranks, as short texts by name."""
        return {
            "step": self.first["step"],
            "window": self.first["window"],
            "plan": str(self.plan),
            "following plan": str(self.following),
            "plan gone back to": str(self.gone_back),
            "gains": _short(sorted(self.averages.items())),
            "buckets": _short(self.first["buckets"]),
            "network": str(self.builder),
            "pieces": self.first["shard"] and self.first["shard"][1],
        }


def read(state: dict[str, Any] | Sequence[dict[str, Any]], parts: Parts, module: DataParallel) -> Loaded:
    """Read a state on this rank and check it, without a change to the running agent.

    Args:
        state: See ``load_everywhere``; without the layout of all ranks.
        parts: Parts of the running agent.
        module: The DDP module.

    Raises:
        SetupError: When the state does not fit.
    """
    states = [state] if isinstance(state, dict) else list(state)
    for one in states:
        if one.get("version") != VERSION:
            raise SetupError(
                f"the agent state has version {one.get('version')!r}, this gravac reads {VERSION}"
            )
    for one in states:
        check_numbers(one, FIELDS)
        if one["policy"] != (policy := parts.spec.policy.name) and policy != DensePolicy.name:
            raise unfit(policy, f"it was saved under policy={one['policy']!r}")
        _check_shapes(one, module)
    own, first, channels = isinstance(state, dict), states[0], parts.channels
    unknown = _unknown_codec(first, channels)
    if begins_again := first["policy"] != parts.spec.policy.name:
        log.warning(
            "the checkpoint was saved under policy=%r: nothing is compressed from now on, and its residual is sent",
            first["policy"],
        )
    elif begins_again := unknown is not None:
        log.warning(
            "the checkpoint sends with %s, which is not among the plans of this run: the residual stays, and the "
            "policy begins again",
            unknown,
        )
    if begins_again:
        first = first | {"policy_state": None}
    shard = shard_of(module, parts.host)
    residual = _own(first, parts, module, shard) if own else mean_by_shard(states)
    undivided = own and not isinstance(module, ShardedModel) and first["shard"] != shard
    if undivided and first["shard"]:
        residual = spread(residual, first["shard"], first["shapes"])
    elif not (own and first["shard"]):  # else it is that of this shard
        residual = fitted(residual, first["shapes"], module, None if undivided else shard)
    check_residual(residual, module, None if undivided else parts.host)
    memory = memories.build(channels.memory.spec)
    memory.world_size = channels.memory.world_size
    memory.load_state_dict(residual)
    builder, averages = parts.builder, _loaded(first["gain_averages"], 0)
    same = not undivided and first["world_size"] == parts.world_size
    if same and first["network"] is not None:
        # Collectives are chosen as in the earlier run, so that the resumed run is the same.
        builder = replace(builder, network=Network(**first["network"]))
    # What was learned of pieces differs by piece. Under another division ranks would begin with different states.
    learnt = [{} if undivided else first["learnt"]]
    if learnt[0] and first["compressor"] != channels.compressor:
        learnt = [{}]
        log.warning(
            "the checkpoint's compressor is %s, this run's is %s: its state starts empty",
            first["compressor"],
            channels.compressor,
        )
    for number, codec in enumerate(channels.codecs[1:], 1):
        other = first["other_codecs"].get(codec, {"learnt": {}, "gain_averages": {}})
        learnt.append({} if undivided else other["learnt"])
        averages |= _loaded(other["gain_averages"], number)
    aggregators = [builder.build(codec, parts.metered) for codec in channels.codecs]
    for aggregator, one in zip(aggregators, learnt, strict=True):
        aggregator.load_state_dict(dict(one))
    plan, following = (
        (parts.loop.plan, parts.loop.schedule.following)
        if begins_again
        else (_plan(first[name], channels) for name in ("plan", "following"))
    )
    gone_back = None
    if first["gone_back"] is not None and not begins_again:
        gone_back = _plan(first["gone_back"], channels).directive
    layout = regrouper(first["buckets"], module)
    return Loaded(
        first, plan, following, gone_back, averages, memory, builder, aggregators, layout, undivided
    )


def _agreed(aggregators: Sequence[Aggregator], shard: list[int] | None, group: dist.ProcessGroup) -> str:
    """Return what the codecs of all ranks have learned, in short. All ranks of ``group`` call it.

    Raises:
        AgreementError: On all ranks, when it differs between ranks that exchange gradients of the same ``shard``.
    """
    mine = json.dumps([shard, [aggregator.state_digest()[:16] for aggregator in aggregators]])
    every = [mine] if are_equal(mine, group) else sorted(set(gather_texts(mine, group)))
    shards = [json.loads(text)[0] for text in every]
    if len({str(each) for each in shards}) < len(shards):
        raise AgreementError(
            "all ranks need the same checkpoint, but what their codecs have learned differs: load the states of one "
            "step"
        )
    return _short(every)


def _restore(
    found: Loaded, parts: Parts, module: DataParallel, rates: LearningRates, learnt: str
) -> Regrouper | None:
    """Continue from what was read, on all ranks. ``learnt``: what all codecs have learned, in short."""
    loop, channels, first = parts.loop, parts.channels, found.first
    host = parts.host
    if found.undivided and host is not None:
        shapes, whole = trained_shapes(module), found.memory.state_dict()
        parts.executor.run(lambda: found.memory.load_state_dict(divided(whole, host, shapes)))
    parts.builder.network = found.builder.network
    for aggregator in found.aggregators:
        parts.builder.fit(aggregator, parts.metered)  # the network is known, so this does not communicate
    loop.schedule.announcement.add(learnt)
    loop.schedule.announcement.add(str(parts.builder))
    channels.change(found.memory, channels.codecs, found.aggregators)
    loop.restore(found.plan, found.following, first["step"], first["window"], found.gone_back)
    loop.schedule.tracker.averages = found.averages
    loop.clipper.restore(first["clipping"])
    channels.raw_mean.wanted, channels.cuts = loop.clipper.in_use, loop.clipper.cuts
    loop.begin_step()
    rates.restore(list(first["rates"]))
    if found.regrouper is not None:
        found.regrouper.device = parts.executor.device
    return found.regrouper


def _wanted(
    states: list[dict[str, Any]], parts: Parts, module: DataParallel, mapping: bool
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return this rank's own state where it is enough, else all of them, rank 0's first.

    It is where ranks and shards are the same. The residual of whole parameters follows from it under any division.
    """
    shard = shard_of(module, parts.host)
    for state in states:
        same = not isinstance(module, ShardedModel) or state.get("shard") == shard
        if same and (state.get("world_size"), state.get("rank")) == (parts.world_size, parts.rank):
            return state
    states = sorted(states, key=lambda state: int(state.get("rank", 0)))
    ranks = states[0].get("world_size")
    whole = len(states) == ranks != parts.world_size  # that of one rank is all there is
    return states[0] if mapping and len(states) == 1 and not whole else states


def _check_shapes(state: dict[str, Any], module: DataParallel) -> None:
    """Raise SetupError for a state of another model."""
    here = {name: real_shape(parameter) for name, parameter in module.module.named_parameters()}
    there = {name: tuple(shape) for name, shape in state["shapes"].items()}
    for name, shape in there.items():
        if name not in here:
            raise SetupError(
                f"the agent state is of another model: the module has no parameter {name!r} of shape {shape}"
            )
        if here[name] != shape:
            raise SetupError(
                f"the agent state is of another model: parameter {name!r} has shape {shape} there and {here[name]} here"
            )
    new = [name for name in trained_shapes(module) if name not in there]
    if new:
        log.warning(
            "the agent state lacks %d parameters, such as %s: their residual starts at zero", len(new), new[0]
        )


def _own(
    state: dict[str, Any], parts: Parts, module: DataParallel, shard: list[int] | None
) -> dict[str, Tensor]:
    if state["world_size"] != parts.world_size:
        raise SetupError(
            f"the agent state is of a run with {state['world_size']} ranks, this one has {parts.world_size}: "
            "pass the states of all its ranks as a list, so that no residual is lost. With "
            "torch.distributed.checkpoint, write load(..., planner=gravac.LoadPlanner())"
        )
    if state["rank"] != parts.rank:
        raise SetupError(
            f"the agent state is of rank {state['rank']}, this is rank {parts.rank}: load its own state"
        )
    if isinstance(module, ShardedModel) and state["shard"] != shard:
        raise SetupError(
            "the agent state is of a run whose replicas were sharded in another way: pass the states of all its ranks "
            "as a list, so that no residual is lost"
        )
    residual: dict[str, Tensor] = state["residual"]
    return residual


def _short(value: object) -> str:
    """Return a digest of a long value, to compare and to show."""
    return sha256(repr(value).encode()).hexdigest()[:16]


def _averages(tracker: GainTracker, codec: int) -> dict[str, list[float]]:
    return {str(cf): list(pair) for (number, cf), pair in tracker.averages.items() if number == codec}


def _loaded(
    averages: Mapping[str, Sequence[float]], codec: int
) -> dict[tuple[int, float], tuple[float, float]]:
    return {(codec, float(cf)): (pair[0], pair[1]) for cf, pair in averages.items()}


def _plain(plan: StepPlan, codecs: Sequence[str]) -> dict[str, Any]:
    """Return a plan with its codec by name; None: the compressor, whichever a later run has."""
    named = {name: codecs[number] if (number := getattr(plan.directive, name)) else None for name in CODECS}
    return {"cf": plan.cf, **asdict(plan.directive), **named}


def _plan(state: dict[str, Any], channels: Channels) -> StepPlan:
    fields = dict(state)
    cf = fields.pop("cf")
    for name in CODECS:
        fields[name] = 0 if fields[name] is None else channels.codecs.index(fields[name], 1)
    return StepPlan(cf=cf, directive=Directive(**fields))


def _unknown_codec(state: Mapping[str, Any], channels: Channels) -> str | None:
    """Return a codec of the plans in force that this run has not built; None: it has all."""
    plans = [state[name] for name in ("plan", "following", "gone_back") if state[name] is not None]
    codecs = (plan[name] for plan in plans for name in CODECS)
    return next((codec for codec in codecs if codec not in (None, *channels.codecs[1:])), None)
