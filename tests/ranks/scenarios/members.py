"""Every codec, memory and collective by name."""

import hashlib
import math
import re
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gravac.optim
from gravac.aggregators.oneshot import CodecBucket
from gravac_agent import Agent, AgreementError, SetupError
from gravac_agent.network.link import Link
from tests.ranks.scenarios.model import batch, fingerprint, flat, net, train, wrapped
from tests.support.ranks.simulation import simulate


def unstable_memory(rank: int, world: int, folder: str, memory: str) -> dict[str, Any]:
    """A memory that cannot hold what the codec leaves out, by proven bounds: the agent reports it in the journal."""
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    options: dict[str, Any] = {"policy": "static:cf=10", "memory": memory, "compressor": "randomk"}
    with Agent(
        module, optimizer, data_dir=folder, controller=None, job="unstable", window=5, **options
    ) as agent:
        train(module, optimizer, rank, range(12))
        assert agent.state is not None
        held = agent.state.memory_bytes
    return {"parameters": fingerprint(module), "memory_bytes": held}


def every_codec(rank: int, world: int, folder: str, names: list[str], buckets: int) -> dict[str, Any]:
    """A short job with each member, one after the other, at CF 8, which rank 0 then simulates."""
    return {name: _one_codec(rank, world, folder, name, buckets) for name in names}


def _one_codec(rank: int, world: int, folder: str, name: str, buckets: int) -> dict[str, Any]:
    layers = max(3, buckets)
    module = wrapped(buckets=buckets, layers=layers)
    start = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    cfs, layouts = [], []
    codec, _, collective = name.partition(" by ")
    options: dict[str, Any] = {
        "policy": "static:cf=8",
        "compressor": codec,
        "collective": collective or "gather",
        "job": re.sub(r"\W", "-", f"{name}-{buckets}"),
    }
    with Agent(module, optimizer, data_dir=folder, controller=None, window=6, **options) as agent:
        assert agent._parts is not None
        loop = agent._parts.loop
        for step in range(7):
            cfs.append(loop.plan.cf)
            loss = train(module, optimizer, rank, range(step, step + 1))
            layouts.append([list(bucket.names) for bucket in agent._session.layout])
    found = {
        "parameters": fingerprint(module),
        "loss": loss,
        "cfs": cfs,
        "buckets": len(layouts[-1]),
        "failed": loop.totals.failed_steps,
        "saved": loop.totals.dense_bytes / loop.totals.payload_bytes,
    }
    if rank == 0:
        options = {"compressor": codec, "collective": collective or "gather", "memory": "residual"}
        options |= {"cfs": cfs, "layouts": layouts, "rate": 0.02, "measured": max(cfs)}
        expected = simulate(lambda: net(layers=layers), batch, world=world, **options)
        moved = sum(float((one - begun).square().sum()) for one, begun in zip(expected, start, strict=True))
        pairs = zip(expected, module.parameters(), strict=True)
        off = sum(float((one - ours.detach()).square().sum()) for one, ours in pairs)
        found |= {"off_ratio": math.sqrt(off / moved)}
    return found


def thresholds(rank: int, world: int, folder: str, compressor: str) -> dict[str, Any]:
    """What a hard threshold sends and leaves out in each step, over buckets whose layers differ in magnitude."""
    torch.manual_seed(0)
    layers = [(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(6)]
    model = torch.nn.Sequential(*(part for layer in layers for part in layer), torch.nn.Linear(64, 10))
    for number, parameter in enumerate(model.parameters()):
        parameter.register_hook(lambda gradient, factor=4.0 ** (number % 5 - 2): 100.0 * factor * gradient)
    module = DistributedDataParallel(model, bucket_cap_mb=0.015)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-5)
    found: dict[int, tuple[float, float, int]] = {}
    options: dict[str, Any] = {"policy": "static:cf=20", "compressor": compressor, "job": "thresholds"}
    with Agent(
        module, optimizer, data_dir=folder, controller=None, window=6, memory="none", **options
    ) as agent:
        assert agent._parts is not None
        loop, aggregator = agent._parts.loop, agent._parts.channels.aggregator
        prepare = CodecBucket.prepare

        def watched(part: CodecBucket, x: torch.Tensor, cfs: Any, key: Any, *more: Any) -> Any:
            draft: Any = prepare(part, x, cfs, key, *more)
            if loop.plan.cf > 1.0:
                sent = part.codec.decode(draft.payloads[loop.plan.cf]) != 0
                least, most, count = found.get(key.step, (math.inf, 0.0, 0))
                least = min([least, *x[sent].abs().tolist()])
                most = max([most, *x[~sent].abs().tolist()])
                found[key.step] = least, most, count + int(sent.sum())
            return draft

        CodecBucket.prepare = watched  # type: ignore[method-assign]
        try:
            train(module, optimizer, rank, range(14))
        finally:
            CodecBucket.prepare = prepare  # type: ignore[method-assign]
        buckets, learnt = len(agent._session.layout), aggregator.state_digest()
    elements = sum(parameter.numel() for parameter in model.parameters())
    return {"found": found, "buckets": buckets, "learnt": learnt, "elements": elements}


def switched(rank: int, world: int, folder: str, stages: list[dict[str, str]]) -> dict[str, Any]:
    """Codec and memory change every few steps: the residual before and after each change, and a run to the end."""
    module = wrapped(buckets=6)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    moved, residuals, cfs = [], [], []
    options: dict[str, Any] = {"policy": "static:cf=8", "job": "switched", "window": 5}
    with Agent(module, optimizer, data_dir=folder, controller=None, **options) as agent:
        assert agent._parts is not None
        loss = train(module, optimizer, rank, range(6))
        for number, stage in enumerate(stages):
            before = flat(agent)["residual"]
            agent.switch(**stage)
            after = agent._parts.memory.state_dict()
            moved.append(max(float((before[name] - after[name]).abs().max()) for name in before))
            residuals.append(max(float(value.abs().max()) for value in before.values()))
            loss = train(module, optimizer, rank, range(6 * number + 6, 6 * number + 12))
            cfs.append(agent.state.cf if agent.state else 0)
    return {
        "parameters": fingerprint(module),
        "loss": loss,
        "moved": moved,
        "residuals": residuals,
        "cfs": cfs,
    }


def switched_differently(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Ranks that switch to different codecs; then to an unknown one."""
    module = wrapped()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    said = []
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=8", window=5) as agent:
        train(module, optimizer, rank, range(4))
        for compressor in ("topk" if rank else "qsgd", "nope"):
            try:
                agent.switch(compressor=compressor)
            except (AgreementError, SetupError) as error:
                said.append(f"{type(error).__name__}: {error}")
        loss = train(module, optimizer, rank, range(4, 8))
    return {"said": said, "loss": loss, "parameters": fingerprint(module)}


def momentum_in_the_memory(rank: int, world: int, folder: str) -> dict[str, Any]:
    """The optimizer's momentum against the memory's, without compression; then DGC as a whole."""

    def trained(momentum: float, **options: Any) -> tuple[list[torch.Tensor], float]:
        module = wrapped(buckets=6)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=momentum)
        with Agent(module, optimizer, data_dir=folder, controller=None, window=5, **options) as agent:
            train(module, optimizer, rank, range(25))
            cf = agent.state.cf if agent.state else 0.0
        return [param.detach() for param in module.parameters()], cf

    theirs, _ = trained(0.9, policy="dense", job="theirs")
    ours, _ = trained(0.0, policy="dense", memory="momentum:momentum=0.9", job="ours")
    start = list(net().parameters())
    apart = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    moved = max(float((a - b.detach()).abs().max()) for a, b in zip(ours, start, strict=True))
    dgc = {"compressor": "dgc", "memory": "momentum:clip=1", "policy": "warmup:cf=100,windows=1"}
    whole, cf = trained(0.0, job="dgc", **dgc)
    finite = all(bool(one.isfinite().all()) for one in whole)
    digest = hashlib.sha256(
        b"".join(bytes(one.view(torch.uint8).flatten().tolist()) for one in whole)
    ).hexdigest()
    return {"apart": apart, "moved": moved, "cf": cf, "finite": finite, "parameters": digest}


def collectives_of_optimizers(rank: int, world: int, folder: str) -> dict[str, str]:
    """Coarse values by ``auto`` on a slow link, with three optimizers; the parameters that each ends with."""
    found = {}
    for name, kind, options in (
        ("sgd", torch.optim.SGD, {}),
        ("aged", gravac.optim.AdamW, {}),
        ("low", gravac.optim.AdamW, {"betas": (0.5, 0.99)}),
    ):
        module = wrapped(buckets=4)
        optimizer = kind(module.parameters(), lr=0.01, **options)
        with Agent(
            module,
            optimizer,
            data_dir=folder,
            controller=None,
            compressor="topk+twobit",
            collective="auto",
            policy="static:cf=16.6",
            link=Link(bits_per_second=1e7),
            window=3,
            job=name,
        ):
            train(module, optimizer, rank, range(6))
            found[name] = fingerprint(module)
    return found


def chosen_collectives(rank: int, world: int, folder: str) -> dict[str, Any]:
    """``auto`` by a link that has no latency, by what is measured, as a checkpoint has it, and switched in mid-job;
    then by checkpoints that differ."""

    def job(name: str, **options: Any) -> tuple[Agent, DistributedDataParallel, torch.optim.Optimizer]:
        module = wrapped(buckets=4)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        options |= {"policy": "static:cf=10", "collective": "auto", "window": 3, "job": name}
        return Agent(module, optimizer, data_dir=folder, controller=None, **options), module, optimizer

    found: dict[str, Any] = {}
    agent, module, optimizer = job("linked", link=Link(bits_per_second=1e10))
    with agent:
        train(module, optimizer, rank, range(1))
        early = flat(agent)
        train(module, optimizer, rank, range(1, 6))
        state = flat(agent)
        found["linked"] = fingerprint(module), str(state["network"])
    agent, module, optimizer = job("measured")
    with agent:
        train(module, optimizer, rank, range(6))
        found["measured"] = fingerprint(module), str(flat(agent)["network"])
        agent.switch(collective="shared")
        train(module, optimizer, rank, range(6, 12))
        before = flat(agent)["residual"]
        agent.switch(collective="owners", compressor="topk+int8")
        after = flat(agent)["residual"]
        found["moved"] = max(float((before[name] - after[name]).abs().max()) for name in before)
        try:
            agent.switch(compressor="qsgd")
        except SetupError as error:
            found["refused"] = str(error)
        train(module, optimizer, rank, range(12, 18))
        found["switched"] = fingerprint(module), str(agent.state.cf if agent.state else None)
    agent, module, optimizer = job("resumed")
    with agent:
        agent.load_state_dict(state)
        train(module, optimizer, rank, range(6, 12))
        found["resumed"] = fingerprint(module), str(flat(agent)["network"])
    early["network"]["bytes_per_second"] *= 1 + rank
    agent, module, optimizer = job("apart")
    try:
        with agent:
            agent.load_state_dict(early)
            train(module, optimizer, rank, range(1, 6))
    except AgreementError as error:
        found["apart"] = str(error)
    return found
