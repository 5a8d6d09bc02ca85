"""Two levels of links, under DDP and ``replicate()``: each rank exchanges its piece of a bucket between hosts."""

import math
import os
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gravac.optim import AdamW
from gravac_agent import Agent, SetupError
from gravac_agent.exchange.plan import Directive
from tests.ranks.scenarios.hybrid import bytes_sent
from tests.ranks.scenarios.kinds import mixed_kinds
from tests.ranks.scenarios.model import batch, fingerprint, flat, train, wrapped
from tests.ranks.scenarios.undo import on_each_part
from tests.support.streams.at_once import streams_for_agents

AGENT: dict[str, Any] = {"controller": None, "window": 5, "collective": "gather"}


class Odd(nn.Module):
    """Parameters whose rows no number of ranks divides: a scalar, few rows, one row, and a branch.

    ``replicate()`` takes no scalar, so there it is a row.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, by: str = "ddp") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.branch, self.head = nn.Linear(64, 33), nn.Linear(33, 33), nn.Linear(33, 10)
        self.scale = nn.Parameter(torch.ones(() if by == "ddp" else (1,)))
        self.shift = nn.Parameter(torch.zeros(1, 33))
        self.use_branch = True
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x.to(self.scale.dtype))) * self.scale + self.shift
        x = x + torch.tanh(self.branch(x)) if self.use_branch else x
        out: Tensor = self.head(x)
        return out


def exchanging(streams: bool, whole: bool = False) -> AbstractContextManager[None]:
    """Return in what an agent starts that exchanges with threads or on streams, there maybe in ``whole`` messages."""
    return streams_for_agents(whole=whole) if streams else nullcontext()


def parallel(model: Odd, by: str, **options: Any) -> Any:
    """Return a model whose gradients ``ddp`` or ``replicate`` averages, in several buckets."""
    if by == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.first, model.branch, model.head):
        replicate(part, mesh=mesh)
    return replicate(model, mesh=mesh)


def local(tensor: Any) -> Tensor:
    """Return a parameter's or a gradient's values; those of ``replicate()`` are in a DTensor."""
    tensor = tensor.detach()
    values: Tensor = getattr(tensor, "_local_tensor", tensor)
    return values


class Steps:
    """Steps of a model whose parameters stay, so that the sum of the mean gradients is known.

    ``factor``: the divide factor of ``replicate()``, other than the number of ranks. ``streams``: whether an optimizer
    would apply gradients that are not finite.
    """

    def __init__(
        self,
        rank: int,
        dtype: torch.dtype = torch.float32,
        by: str = "ddp",
        factor: float = 0.0,
        streams: bool = False,
        **options: Any,
    ) -> None:
        self.streams, self.lost = streams, 0
        self.rank, self.model, self.plain = rank, Odd(dtype, by), Odd(dtype, by)
        self.module = parallel(self.model, by, **options)
        # The gradient is divided before it is exchanged, and what is exchanged is added up.
        self.scales = (dist.get_world_size() / factor, dist.get_world_size()) if factor else (1.0, 1.0)
        for one in self.module.modules() if factor else ():
            if hasattr(one, "set_gradient_divide_factor"):
                one.set_gradient_divide_factor(factor)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.0)
        self.arrived = {name: torch.zeros_like(one).double() for name, one in self.plain.named_parameters()}
        self.came = {name: one.clone() for name, one in self.arrived.items()}
        self.counted = 0

    def step(self, number: int, micro: int = 1, spoiled: bool = False, branch: bool = True) -> None:
        """Make a step. ``spoiled``: it does not count. ``branch``: of this rank."""
        self.model.use_branch = self.plain.use_branch = branch
        self.plain.zero_grad()
        for part in range(micro):
            x, y = batch(self.rank, 100 * part + number)
            late = self.module.no_sync() if part < micro - 1 else nullcontext()
            with late:
                loss = nn.functional.cross_entropy(self.module(x), y)
                (loss * math.nan if spoiled and self.rank == 1 else loss).backward()
            nn.functional.cross_entropy(self.plain(x), y).backward()
        for name, one in self.model.named_parameters() if not spoiled else ():
            if one.grad is not None:
                self.arrived[name] += local(one.grad)
        for name, one in self.plain.named_parameters() if not spoiled else ():
            if one.grad is not None:
                self.came[name] += one.grad
        if spoiled:
            self.lost += all(bool(local(one.grad).isnan().all()) for one in self.model.parameters())
        if not (spoiled and self.streams):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.counted += not spoiled

    def missing(self, residuals: dict[str, Tensor], pieces: tuple[int, int] = (0, 1)) -> dict[str, float]:
        """What neither arrived nor waits, and what waits, next to the largest element of what came."""
        worst = largest = waiting = 0.0
        for name, came in self.came.items():
            mean, rest = came.clone(), whole(residuals.get(name), came, pieces)
            for one, scale in zip((mean, rest), self.scales, strict=True):
                dist.all_reduce(one)
                one *= scale / dist.get_world_size()
            worst = max(worst, float((self.arrived[name] + rest - mean).abs().max()))
            largest, waiting = max(largest, float(mean.abs().max())), max(waiting, float(rest.abs().max()))
        return {"error": worst / largest, "waiting": waiting / largest}


def whole(residual: Tensor | None, like: Tensor, pieces: tuple[int, int]) -> Tensor:
    """Return what a rank's piece of a residual adds to the mean over ranks, in the parameter's shape."""
    number, ranks = pieces
    rows = like.shape[0] if like.dim() else 1
    length = -(-rows // ranks) * (like[0].numel() if like.dim() else 1)
    padded = torch.zeros(ranks * length, dtype=torch.float64)
    if residual is not None:
        assert residual.numel() == length
        padded[number * length :][:length] = residual.double() * ranks
    assert padded[like.numel() :].abs().max() == 0.0 if ranks * length > like.numel() else True
    return padded[: like.numel()].view(like.shape)


def pieces_of(agent: Agent) -> tuple[int, int]:
    shard = flat(agent)["shard"]
    return (0, 1) if shard is None else (shard[0], shard[1])


def levels_conserve(
    rank: int,
    world: int,
    folder: str,
    compressor: str = "topk",
    cf: float = 8.0,
    memory: str = "residual",
    how: str = "plain",
    levels: Any = 2,
    by: str = "ddp",
    factor: float = 0.0,
    streams: bool = False,
    whole: bool = False,
    collective: str = "gather",
) -> dict[str, Any]:
    """In each step, what arrived and what waits add up to the mean gradients; after the agent closed, all arrives.

    ``how``: ``skipped`` steps, ``no_sync``, an ``unused`` branch of some ranks, ``views`` into the buckets, a codec
    ``switched``, or an agent ``again`` after the first one. ``streams`` and ``whole``: see ``exchanging``.
    """
    options: dict[str, Any] = {"find_unused_parameters": True} if how == "unused" else {}
    options |= {"gradient_as_bucket_view": True} if how == "views" else {}
    steps = Steps(rank, by=by, factor=factor, streams=streams, **options)
    chosen = {"compressor": compressor, "memory": memory, "policy": f"static:cf={cf}", **AGENT}
    chosen["collective"] = collective
    errors, waiting, parts, agents = [], 0.0, 0, 2 if how == "again" else 1
    for number in range(agents):
        with (
            exchanging(streams, whole),
            Agent(steps.module, steps.optimizer, data_dir=folder, levels=levels, **chosen) as agent,
        ):
            for step in range(8 * number, 8 * number + 8):
                spoiled = how == "skipped" and step in (3, 5)
                alone = rank % 3 > 0 or step % 2 > 0
                steps.step(step, 3 if how == "no_sync" else 1, spoiled, how != "unused" or alone)
                if how == "switched" and step == 4:
                    agent.switch(compressor="int8", collective="gather")
                agent.state_dict()  # ends the step
                assert agent._parts is not None
                found = steps.missing(agent._parts.memory.state_dict(), pieces_of(agent))
                errors.append(found["error"])
                waiting = max(waiting, found["waiting"])
            parts = len(agent._session.layout) if agent._session else 0
            state = agent.state
            assert state is not None
            held = sum(one.numel() for one in agent._parts.memory.state_dict().values())
            executor = type(agent._parts.executor).__name__
    steps.step(20)  # plain DDP sends what waits
    total = sum(one.numel() for one in steps.model.parameters())
    return {
        "errors": errors,
        "waiting": waiting,
        "after": steps.missing({}),
        "buckets": parts,
        "held": held / total,
        "bytes": state.dense_bytes / 8 / 4 / total,
        "wire": state.dense_bytes / state.payload_bytes,
        "nonfinite": state.nonfinite_steps,
        "lost": steps.lost,
        "executor": executor,
        "gradients": [float(one.sum()).hex() for one in steps.arrived.values()],
    }


def levels_train(
    rank: int,
    world: int,
    folder: str,
    policy: str,
    levels: Any = 2,
    steps: int = 30,
    dtype: str = "float32",
    aged: bool = False,
    clip: float | None = None,
    by: str = "ddp",
    streams: bool = False,
    whole: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train plainly, with whole gradients and with two levels: the parameters, and how far they are apart."""
    found, ends = {}, {}
    for name, chosen in (("plain", None), ("flat", "flat"), ("levels", levels)):
        module = parallel(Odd(getattr(torch, dtype), by), by)
        optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        if aged:
            optimizer = AdamW(module.parameters(), lr=0.003)
        start = torch.cat([local(one).flatten().float() for one in module.parameters()])
        options = (
            AGENT | {"data_dir": folder, "policy": policy, "levels": chosen or "flat", "job": name} | settings
        )
        norms = []
        with (
            exchanging(streams, whole),
            Agent(module, optimizer, enabled=chosen is not None, **options) as agent,
        ):

            def clipped(_: int, agent: Agent = agent, norms: list[float] = norms) -> None:
                if clip is not None:
                    norms.append(float(agent.clip_grad_norm_(clip)))

            loss = train(module, optimizer, rank, range(steps), clipped)
            wire = agent.state and agent.state.dense_bytes / max(1, agent.state.payload_bytes)
            journal = agent.trace_path
        ends[name] = torch.cat([local(one).flatten().float() for one in module.parameters()])
        moved = float((ends[name] - start).norm())
        found[name] = {
            "parameters": fingerprint(module),
            "loss": loss,
            "wire": wire,
            "norms": norms,
            "off": float((ends[name] - ends["plain"]).norm()) / moved,
            "journal": "" if journal is None else journal.read_text(),
        }
    return found


def levels_resumed(
    rank: int,
    world: int,
    folder: str,
    first: Any = 2,
    second: Any = 2,
    memory: str = "residual",
    streams: bool = False,
) -> dict[str, Any]:
    """8 steps, a checkpoint of this rank, and 8 more in new objects, maybe with other levels; once also in one go."""
    chosen = {"compressor": "topk+bf16", "policy": "static:cf=8", "memory": memory, **AGENT}
    prints, momentum = [], 0.0 if memory.startswith("momentum") else 0.9
    for cut in (None, 8):
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=momentum)
        with (
            exchanging(streams),
            Agent(module, optimizer, data_dir=folder, levels=first, job=f"one{cut}", **chosen) as agent,
        ):
            train(module, optimizer, rank, range(cut or 16))
            saved = agent.state_dict()
            before = _means(agent, module)
        if cut:
            rates = optimizer.state_dict()
            model = {name: one.clone() for name, one in module.module.state_dict().items()}
            again = wrapped(buckets=4)
            again.module.load_state_dict(model)
            optimizer = torch.optim.SGD(again.parameters(), lr=0.05, momentum=momentum)
            optimizer.load_state_dict(rates)
            with (
                exchanging(streams),
                Agent(again, optimizer, data_dir=folder, levels=second, job="two", **chosen) as agent,
            ):
                agent.load_state_dict(saved)
                after = _means(agent, again)
                train(again, optimizer, rank, range(cut, 16))
            module = again
        prints.append(fingerprint(module))
    worst = max(float((before[name] - after[name]).abs().max()) for name in before)
    largest = max(float(one.abs().max()) for one in before.values())
    return {"same": prints[0] == prints[1], "moved": worst / largest, "held": largest, "print": prints[1]}


def _means(agent: Agent, module: Any) -> dict[str, Tensor]:
    """The mean over ranks of the residual, in the parameters' shapes."""
    assert agent._parts is not None
    residuals, pieces = agent._parts.memory.state_dict(), pieces_of(agent)
    found = {}
    for name, one in module.module.named_parameters():
        found[name] = whole(residuals.get(name), one.detach().double(), pieces)
        dist.all_reduce(found[name])
        found[name] /= dist.get_world_size()
    return found


def levels_rank_change(
    rank: int,
    world: int,
    folder: str,
    shared: str,
    part: int,
    saved_by: int,
    levels: Any,
    by: str = "ddp",
) -> dict[str, Any]:
    """A part of a training with other ranks than the one before: what arrived and what waits add up to what came.

    ``saved_by``: ranks of the part before; 0: there is none.
    """
    steps = Steps(rank, by=by)
    chosen = {"compressor": "topk", "policy": "static:cf=10", "job": f"part{part}", **AGENT}
    with Agent(steps.module, steps.optimizer, data_dir=folder, levels=levels, **chosen) as agent:
        earlier: dict[str, dict[str, Tensor]] = {"arrived": {}, "came": {}}
        if saved_by:
            earlier = torch.load(f"{shared}/sums{part - 1}.pt", weights_only=True)
            files = [f"{shared}/{part - 1}-{one}.pt" for one in range(saved_by)]
            agent.load_state_dict([torch.load(file, weights_only=True) for file in files])
        for step in range(6 * part, 6 * part + 6):
            steps.step(step)
        torch.save(agent.state_dict(), f"{shared}/{part}-{rank}.pt")
        assert agent._parts is not None
        residual, pieces = agent._parts.memory.state_dict(), pieces_of(agent)
        for name, came in steps.came.items():  # the means so far, of other numbers of ranks
            dist.all_reduce(came)
            came /= world
            came += earlier["came"].get(name, 0.0)
            steps.arrived[name] += earlier["arrived"].get(name, 0.0)
        found = steps.missing(residual, pieces)
    if rank == 0:
        torch.save({"arrived": steps.arrived, "came": steps.came}, f"{shared}/sums{part}.pt")
    return {**found, "pieces": pieces[1]}


def levels_by_host(
    rank: int, world: int, folder: str, levels: Any = "host", policy: str = "static:cf=8"
) -> dict[str, Any]:
    """Which ranks divide a gradient, and what rank 0 wrote of it."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(
        module, optimizer, data_dir=folder, policy=policy, levels=levels, job="hosts", **AGENT
    ) as agent:
        train(module, optimizer, rank, range(12))
        pieces = pieces_of(agent)
        assert agent._parts is not None
        others, journal = dist.get_process_group_ranks(agent._parts.metered.group), agent.trace_path
    text = "" if journal is None else journal.read_text()
    return {"pieces": pieces, "others": others, "journal": text, "parameters": fingerprint(module)}


def levels_cost(
    rank: int, world: int, folder: str, levels: Any, cases: list[dict[str, Any]], each: int = 6
) -> dict[str, Any]:
    """Seconds of the exchange by the cost model and by the clock: of dense steps, and of each case's plan.

    The forward and backward of one large layer take next to no time. Of the clock the quickest step counts, and each
    case has a second try: what others do on this machine while links are measured is no property of the links.
    """
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for number, case in enumerate([*cases, *cases]):
        torch.manual_seed(0)
        module = DistributedDataParallel(nn.Linear(64, 6000))  # one bucket, of 1.5 MB
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        policy = f"auto:plans={case['compressor']}@{case['cf']:g}"
        options = {"compressor": case["compressor"], "collective": case["collective"], "controller": None}
        times: dict[float, list[float]] = {}
        with Agent(
            module,
            optimizer,
            data_dir=folder,
            levels=levels,
            policy=policy,
            job=str(number),
            window=1000,
            **options,
        ) as agent:
            assert agent._parts is not None
            costs = {cost.cf: cost.seconds for cost in agent._parts.spec.plans}
            reporter, cf = agent._parts.reporter, max(costs)
            for step in range(2 * each + 4):
                if reporter is not None:
                    now = 1.0 if step < each else cf
                    reporter.directive = Directive(1 + (now > 1.0), "explore", now, now, 0.0)
                sent = agent.state.cf if agent.state else 0.0
                x, _ = batch(rank, step)
                loss = module(x).square().mean()
                dist.barrier()
                began = time.monotonic()
                loss.backward()
                times.setdefault(sent, []).append(time.monotonic() - began)
                optimizer.step()
                optimizer.zero_grad()
        for sent in (1.0, max(times)):
            name, seconds = f"{case['collective']} at CF {sent:g}" if sent > 1.0 else "ring", times[sent]
            key = number % len(cases), name
            both = costs[sent], min(seconds[1:])
            found[key] = min(found.get(key, both), both, key=lambda pair: abs(math.log(pair[0] / pair[1])))
    return {"rows": [(name, *both) for (_, name), both in found.items()]}


def levels_bytes(rank: int, world: int, folder: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes a step that this host sends, by the counters of its interface, and the records of the last window."""
    found = []
    for number, case in enumerate(cases):
        torch.manual_seed(0)
        module = DistributedDataParallel(nn.Linear(64, 6000))  # one bucket
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        with Agent(module, optimizer, data_dir=folder, job=str(number), **AGENT | case) as agent:
            for step in range(10):
                if step == 5:
                    dist.barrier()
                    sent = bytes_sent()
                module(batch(rank, step)[0]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            dist.barrier()
            sent = bytes_sent() - sent
            assert agent._parts is not None
            report, spec = agent._parts.loop.reports.last, agent._parts.spec
        inside = None if report is None or report.inside is None else report.inside.model_dump()
        found.append(
            {
                "sent": sent / 5,
                "payload": 0 if report is None else report.payload_bytes / 5,
                "inside": inside,
                "hosts": None if spec.hosts is None else (spec.hosts.hosts, spec.hosts.ranks),
                "communicate": 0.0 if report is None else report.phases.communicate,
            }
        )
    return {"rows": found, "elements": 65 * 6000}


def levels_survive(rank: int, world: int, folder: str, how: str) -> dict[str, Any]:
    """One rank cannot compress its piece of a bucket from step 5 on, or decode it, ever; or it is gone at step 5.

    Args:
        rank: As in every scenario, and so the next two.
        world: See there.
        folder: See there.
        how: ``compress``, ``decompress``, or ``raises``, where rank 3 ends its training.
    """
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    train(module, optimizer, rank, range(1))  # DDP regroups its buckets after the first step
    codec = "randomk" if how == "compress" else "topk"  # which seeks its elements while the residual is added
    chosen = {"policy": "static:cf=8", "compressor": codec, "job": how, "data_dir": folder, **AGENT}
    error, began = "", time.monotonic()
    agent = Agent(module, optimizer, levels=2, **chosen)
    try:
        with agent:
            assert agent._parts is not None
            made = agent._parts.channels.aggregator.compressor  # type: ignore[attr-defined]
            # With the last layers in the first bucket, there is no other piece of this size.
            target = sum(5 if p.numel() == 10 else p.numel() // 2 for p in list(module.parameters())[-4:])
            real, loop = getattr(made, how, None), agent._parts.loop
            own, hits = [], 0

            def broken(x: Any, second: Any, *rest: Any) -> Any:
                nonlocal hits
                numel = second.numel() if how == "decompress" else x.numel()
                if rank == 1 and numel == target and not own and (how == "decompress" or loop.step >= 5):
                    hits += 1
                    raise RuntimeError("deliberate")
                assert real is not None
                return real(x, second, *rest)

            def updated(update: Any, *given: Any) -> Any:  # decodes what this rank sent
                own.append(True)
                try:
                    return update(*given)
                finally:
                    own.pop()

            if real is not None:
                setattr(made, how, broken)
                memory = agent._parts.memory
                on_each_part(memory, lambda part: setattr(part, "update", partial(updated, part.update)))
            for step in range(1, 14):
                if rank == 3 and step == 5 and how == "raises":
                    raise ValueError("deliberate")
                train(module, optimizer, rank, range(step, step + 1))
            trace, failed = agent.trace_path, loop.totals.failed_steps
    except Exception as caught:
        trace, failed, hits, error = None, 0, 0, f"{type(caught).__name__}: {caught}"
        began = time.monotonic() - began
    return {
        "parameters": fingerprint(module),
        "failed": failed,
        "hits": hits,
        "journal": "" if trace is None else trace.read_text(),
        "error": error,
        "lasted": began,
    }


def levels_kinds(rank: int, world: int, folder: str, streams: bool = False, **options: Any) -> dict[str, Any]:
    """Complex and sparse gradients; the agents of this scenario take the setting from the environment."""
    os.environ["GRAVAC_LEVELS"] = "2"
    try:
        with exchanging(streams):
            return mixed_kinds(rank, world, folder, **options)
    finally:
        del os.environ["GRAVAC_LEVELS"]


def levels_refused(rank: int, world: int, folder: str, wrong: list[Any]) -> list[str]:
    """What an agent says to each value of ``levels``."""
    said = []
    for value in wrong:
        module = wrapped(buckets=2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        try:
            with Agent(module, optimizer, data_dir=folder, levels=value, policy="static:cf=8", **AGENT):
                said.append("")
        except SetupError as error:
            said.append(str(error))
    return said
