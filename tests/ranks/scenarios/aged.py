"""``gravac.optim.AdamW`` under an agent, and its steps made again by hand from the gradients that it was given."""

import contextlib
import hashlib
import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac import optim
from gravac.collectives import Exchange
from gravac.compressors.rows import PayloadRows
from gravac.kernels import STEP
from gravac.memories import Bucket
from gravac_agent import Agent
from gravac_agent.exchange.channel import BucketChannel, EncodedBucket
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.streams.groups import GroupOffer
from gravac_agent.streams.messages import Messages, SentMessage
from tests.ranks.scenarios.closures import Wrapper
from tests.ranks.scenarios.model import batch, fingerprint
from tests.ranks.scenarios.sharded import loss_of, sharded
from tests.ranks.scenarios.undo import on_each_part
from tests.support.streams.at_once import streams_for_agents

SPARSE = ("topk", "randomk")
SETTINGS: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.05}


class Model(nn.Module):
    """Convolutions in another order of memory, and a layer that is not used in every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(4, 24, 3, padding=1)
        self.second = nn.Conv2d(24, 24, 3, padding=1)
        self.sometimes = nn.Linear(384, 384)
        self.last = nn.Linear(384, 10)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor, used: bool = True) -> Tensor:
        hidden = self.first(x.view(-1, 4, 4, 4)).tanh()
        hidden = self.second(hidden).tanh().flatten(1)
        return self.last(self.sometimes(hidden).tanh() if used else hidden)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


Sent = dict[int, tuple[Bucket, Exchange]]


@contextlib.contextmanager
def overheard() -> Iterator[Sent]:
    """Yield what this rank has sent last of each bucket."""
    encode, sent = BucketChannel.encode, Sent()

    def heard(channel: BucketChannel, *given: Any) -> EncodedBucket:
        encoded = encode(channel, *given)
        if encoded.transfer is not None:
            sent[channel.bucket.number] = channel.bucket, encoded.transfer
        return encoded

    send = Messages.send

    def noted(
        messages: Messages, plan: StepPlan, offers: Sequence[GroupOffer], *given: Any
    ) -> list[SentMessage]:
        found = send(messages, plan, offers, *given)
        for offer, message in zip(offers, found, strict=True):
            bucket = offer.channel.bucket
            sent[bucket.number] = bucket, message
        return found

    with mock.patch.object(BucketChannel, "encode", heard), mock.patch.object(Messages, "send", noted):
        yield sent


class Record:
    """What the optimizer was given in each of its steps, and how many ranks had sent each element, as they say."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], sent: Sent) -> None:
        self.names, self.parameters = [name for name, _ in named], [one for _, one in named]
        self._sent = sent
        self.start = [local(one).detach().clone() for one in self.parameters]
        self.steps: list[tuple[list[Tensor | None], dict[str, Tensor] | None]] = []
        self.rates: list[float] = []
        """Of each step."""
        self.partial = False
        self.whole: set[int] = set()
        """Numbers of the parameters that are sent densely all the time."""
        self.pooled = False
        """Whether several ranks sent an element, and not all."""
        self.owners = False
        """Whether owners sent it, so that half of what waits arrives."""

    def take(self, *of: Any) -> None:
        self.rates.append(of[0].param_groups[0]["lr"] if of else SETTINGS["lr"])
        grads = [None if one.grad is None else local(one.grad).detach().clone() for one in self.parameters]
        self.steps.append((grads, self._own() if self.partial else None))
        self._sent.clear()

    def _own(self) -> dict[str, Tensor]:
        """What this rank sent of each parameter, a 1 for each element."""
        found: dict[str, Tensor] = {}
        for bucket, transfer in self._sent.values():
            if isinstance(transfer, SentMessage):
                whole = torch.zeros(sum(bucket.numels), dtype=torch.uint8)
                whole[transfer.step.buffers.places.long()] = 1
                found |= dict(zip(bucket.names, whole.split(list(bucket.numels)), strict=True))
                continue
            payload = transfer.payload
            rows = payload.rows if isinstance(payload, PayloadRows) else (payload,)
            mine = torch.zeros(len(rows), sum(bucket.numels) // len(rows), dtype=torch.uint8)
            for row, sent in zip(mine, rows, strict=True):
                assert sent.support is not None
                values = sent.parts[: max(1, len(sent.parts) - 1)]  # positions come last, if they are sent
                # Zeros are sent where the codec fails.
                row[sent.support.long()] = int(any(part.view(torch.uint8).any() for part in values))
            found |= dict(zip(bucket.names, mine.view(-1).split(list(bucket.numels)), strict=True))
        return found

    def exchange(self) -> None:
        """Count over all ranks what they sent in all steps."""
        every = [own[name] for _, own in self.steps if own is not None for name in sorted(own)]
        if not every:
            return
        flat = torch.cat(every)
        dist.all_reduce(flat)
        self.pooled = bool(((flat > 0) & (flat < dist.get_world_size())).any())
        for one, counts in zip(every, flat.split([one.numel() for one in every]), strict=True):
            one.copy_(counts)

    def _senders(self, own: dict[str, Tensor], at: int, grad: Tensor) -> Tensor:
        """Return how many ranks sent each element that is not 0: all if none did."""
        name = self.names[at]
        flat = own[name if name in own else f"{name}@{dist.get_rank()}"]
        senders = flat[: grad.numel()].as_strided(grad.shape, grad.stride())
        return torch.where(senders > 0, senders, dist.get_world_size()) * (grad != 0)

    def again(self, kind: Any = optim.AdamW) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Step copies of the parameters by hand. Return these and the optimizer's state of each."""
        copies = [nn.Parameter(one.clone()) for one in self.start]
        optimizer = kind(copies, **SETTINGS)
        before = self.rates[0]
        for (grads, own), rate in zip(self.steps, self.rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            if rate != before and kind is optim.AdamW:  # the residual was multiplied by this
                optimizer.scaled(before / rate, copies)
            before = rate
            for one, grad in zip(copies, grads, strict=True):
                one.grad = grad
            if own is not None and self.owners:
                optimizer.arrived(
                    {
                        copy: (grad != 0).to(torch.uint8)
                        for copy, grad in zip(copies, grads, strict=True)
                        if grad is not None
                    },
                    2,
                )
            elif own is not None:
                optimizer.arrived(
                    {
                        copies[at]: self._senders(own, at, grad)
                        for at, grad in enumerate(grads)
                        if grad is not None and at not in self.whole
                    },
                    dist.get_world_size(),
                )
            optimizer.step()
        return copies, [optimizer.state[one] for one in copies]


def states(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[dict[str, Tensor]]:
    return [{key: local(value) for key, value in optimizer.state[one].items()} for one in parameters]


def same(one: list[dict[str, Tensor]], two: list[dict[str, Tensor]]) -> bool:
    return all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        for a, b in zip(one, two, strict=True)
    )


def digest(found: list[dict[str, Tensor]]) -> str:
    """Of an optimizer's state, with ages."""
    whole = hashlib.sha256()
    for state in found:
        for key, value in sorted(state.items()):
            whole.update(key.encode() + value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def aged(
    rank: int, world: int, folder: str, *, streams: bool = False, whole: bool = False, **options: Any
) -> dict[str, Any]:
    """Train with an agent, as ``_trained`` says. ``streams``: on the data path of a device; ``whole``: in messages."""
    with streams_for_agents(whole=whole) if streams else contextlib.nullcontext(), overheard() as sent:
        return _trained(rank, folder, sent, **options)


def _trained(
    rank: int,
    folder: str,
    sent: Sent,
    *,
    steps: int = 30,
    compressor: str = "topk+twobit",
    collective: str = "auto",
    switches: dict[str, str] | None = None,
    bad_step: int = -1,
    failing_step: int = -1,
    unused: bool = False,
    backwards: int = 1,
    scaled: bool = False,
    closure: str = "",
    clip: float | None = None,
    enabled: bool = True,
    resume: int = -1,
    undecodable: bool = False,
    policy: str = "static:cf=8",
    adapt: bool = False,
    restarts: bool = False,
) -> dict[str, Any]:
    """Train with an agent. Return what the ranks' states are, and whether steps by hand lead to them.

    Args:
        switches: Codecs that the agent is switched to, by the step.
        bad_step: The step in which rank 1's loss is infinite.
        failing_step: The step in which rank 1's codec raises.
        unused: No rank uses a layer in some steps.
        backwards: In a step, each of which is exchanged.
        scaled: With a GradScaler.
        closure: Steps by a closure, which ``ends`` backward or ``does not``.
        clip: Clip to this norm.
        resume: The step before which all is saved, and loaded by a new agent.
        adapt: The optimizer is torch's, and adapted.
        restarts: The learning rate falls to a fifth in 8 steps, and then begins again.
        undecodable: Rank 1 cannot decode the bucket of the last layer, which is sent densely then.
    """
    plain: Any = torch.optim.AdamW if adapt else optim.AdamW
    module, optimizer = _made(unused, plain)
    if undecodable:  # DDP regroups its buckets after the first step
        module(batch(rank, 0)[0]).sum().backward()
        optimizer.zero_grad()
    record = Record(list(module.module.named_parameters()), sent)
    record.owners = collective == "owners"
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5, enabled=scaled)
    options = {"compressor": compressor, "policy": policy, "window": 5, "enabled": enabled}
    options |= {"scaler": scaler if scaled else None, "data_dir": folder, "controller": None}
    options |= {"adapt_optimizer": adapt, "collective": collective}
    agent = Agent(module, Wrapper(optimizer) if closure else optimizer, job="aged", **options)
    agent.start()
    if undecodable:
        record.whole = {6, 7}
        if rank == 1:
            _cannot_decode(agent, sum(one.numel() for one in record.parameters[6:]))
    if not closure:
        optimizer.register_step_pre_hook(record.take)
    for step in range(steps):
        if step == resume:
            saved = io.BytesIO()
            torch.save([one.state_dict() for one in (module, optimizer, agent)], saved)
            agent.close()
            module, optimizer = _made(unused, plain)
            saved.seek(0)
            loaded = torch.load(saved, weights_only=True)
            if adapt:  # by torch's class, whose state is adapted then
                optimizer.load_state_dict(loaded[1])
            agent = Agent(module, optimizer, job="again", **options)
            agent.start()
            for one, state in zip((module, optimizer, agent), loaded, strict=True):
                if not (adapt and one is optimizer):
                    one.load_state_dict(state)
            record.parameters = list(module.parameters())
            optimizer.register_step_pre_hook(record.take)
        if switches and str(step) in switches:
            agent.switch(compressor=switches[str(step)])
        if restarts:
            for group in optimizer.param_groups:
                group["lr"] = SETTINGS["lr"] * (1.0 - 0.1 * (step % 9))
        state = agent.state
        record.partial = state is not None and state.cf > 1.0 and state.codec.startswith(SPARSE)

        def gradients(step: int = step) -> None:
            for at in range(backwards):
                x, y = batch(rank, backwards * step + at)
                loss = nn.functional.cross_entropy(module(x, not (unused and step % 3)), y)  # noqa: B023
                factor = float("inf") if step == bad_step and rank == 1 else 1.0
                scaler.scale(loss * factor).backward()
            if closure == "ends":
                agent.finish_backward()  # noqa: B023
            if closure:
                record.take()

        with breaking(agent) if step == failing_step and rank == 1 else contextlib.nullcontext():
            if closure:
                optimizer.step(gradients)
            else:
                gradients()
                if clip is not None:
                    agent.clip_grad_norm_(clip)
                scaler.step(optimizer)
                scaler.update()
        optimizer.zero_grad()
    parameters = list(module.parameters())
    own = states(optimizer, parameters)
    record.exchange()
    parts = agent._parts
    found = {
        "parameters": fingerprint(module),
        "state": digest(own),
        "oldest": max((int(one["age"].max()) // STEP for one in own if "age" in one), default=0),
        "pooled": record.pooled,
        "steps": len(record.steps),
        "notes": [] if parts is None else [note for note in parts.channels._noted if "arrived" in note],
        "buckets": 0 if agent._session is None else len(agent._session.layout),
    }
    agent.close()
    found["undone"] = type(optimizer) is plain and not (
        adapt and any("age" in one for one in optimizer.state.values())
    )
    for name, kind in (("by hand", optim.AdamW), ("by torch", torch.optim.AdamW)):
        if name == "by torch":
            record.steps = [(grads, None) for grads, _ in record.steps]
        copies, theirs = record.again(kind)
        equal = all(torch.equal(one, other) for one, other in zip(parameters, copies, strict=True))
        found[name] = equal and same(own, theirs)
    return found


def _made(unused: bool, kind: Any) -> tuple[DistributedDataParallel, Any]:
    module = DistributedDataParallel(Model(), bucket_cap_mb=0.01, find_unused_parameters=unused)
    every = list(module.parameters())
    return module, kind([{"params": every[:3]}, {"params": every[3:]}], **SETTINGS)


@contextlib.contextmanager
def breaking(agent: Agent) -> Iterator[None]:
    """Let this rank's codec raise."""
    assert agent._parts is not None
    codec: Any = agent._parts.channels.aggregator.compressor  # type: ignore[attr-defined]

    def broken(*_: object) -> None:
        raise RuntimeError("deliberate")

    codec.levels = broken
    try:
        yield
    finally:
        del codec.levels


def _cannot_decode(agent: Agent, numel: int) -> None:
    """Let this rank's codec raise where it decodes a mean of that size."""
    assert agent._parts is not None
    codec: Any = agent._parts.channels.aggregator.compressor  # type: ignore[attr-defined]
    decompress, own = codec.decompress, []

    def updated(update: Any, *given: Any) -> Any:  # decodes what this rank sent
        own.append(True)
        try:
            return update(*given)
        finally:
            own.pop()

    def broken(payload: Any, out: Tensor, *more: Any) -> Any:
        if out.numel() == numel and not own:
            raise TypeError("deliberate")
        return decompress(payload, out, *more)

    codec.decompress = broken
    on_each_part(agent._parts.memory, lambda part: setattr(part, "update", partial(updated, part.update)))


def aged_shards(rank: int, world: int, folder: str) -> dict[str, Any]:
    """FSDP2: each rank steps its own shards."""
    model = sharded(world)
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    parameters = [one for _, one in named]
    optimizer = optim.AdamW(parameters, **SETTINGS)
    options: dict[str, Any] = {"policy": "static:cf=8", "collective": "auto", "window": 5}
    with overheard() as sent, Agent(model, optimizer, data_dir=folder, controller=None, **options) as agent:
        record = Record(named, sent)
        optimizer.register_step_pre_hook(record.take)
        for step in range(12):
            state = agent.state
            record.partial = state is not None and state.cf > 1.0
            loss_of(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    record.exchange()
    own, (copies, theirs) = states(optimizer, parameters), record.again()
    equal = all(torch.equal(local(one), other) for one, other in zip(parameters, copies, strict=True))
    ages = [one["age"] for one in own if "age" in one]
    oldest = max(int(age.max()) // STEP for age in ages if age.numel())
    return {"by hand": equal and same(own, theirs), "oldest": oldest, "pooled": record.pooled}


def three_optimizers(rank: int, world: int, folder: str) -> dict[str, Any]:
    """An agent of three optimizers: one of ``gravac.optim``, one that is adapted, and SGD."""
    module = DistributedDataParallel(Model(), bucket_cap_mb=0.01)
    every = dict(module.module.named_parameters())
    names = [name for name in every if name.startswith("sometimes")]
    given = [
        optim.AdamW([every[name] for name in names[:1]], lr=0.01),
        torch.optim.Adam([every[name] for name in names[1:]], lr=0.01),
        torch.optim.SGD([one for name, one in every.items() if name not in names], lr=0.1),
    ]
    options: dict[str, Any] = {
        "policy": "static:cf=8",
        "compressor": "topk",
        "data_dir": folder,
        "controller": None,
    }
    with Agent(module, given, window=5, adapt_optimizer=True, **options) as agent:
        for step in range(13):
            x, y = batch(rank, step)
            nn.functional.cross_entropy(module(x), y).backward()
            for one in given:
                one.step()
                one.zero_grad()
        assert agent._parts is not None
        spec, memory = agent._parts.spec.optimizer, agent._parts.memory
        assert spec is not None
        before = memory.state_dict()
        given[0].param_groups[0]["lr"] /= 2
        module(batch(rank, 99)[0])
        after = memory.state_dict()
        ages = [
            max(int(one["age"].max()) // STEP for one in optimizer.state.values()) for optimizer in given[:2]
        ]
    ratios = {
        name: float(after[name].norm() / before[name].norm()) for name in every if float(before[name].norm())
    }
    return {
        "parameters": fingerprint(module),
        "kind": (spec.name, spec.kind, spec.learning_rate),
        "ages": ages,
        "followed": sorted(name for name, ratio in ratios.items() if abs(ratio - 2.0) < 1e-3),
        "kept": sorted(name for name, ratio in ratios.items() if abs(ratio - 1.0) < 1e-3),
        "classes": [type(one).__module__ for one in given],
        "count": len(ratios),
    }
