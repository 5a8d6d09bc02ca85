"""The scenarios: functions that every rank calls with its device. Their results are JSON."""

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gravac import Agent
from tests.support.gpu import exact, trace

CFS = (1.0, 10.0, 40.0, 3.0, 160.0, 1.5)
"""Switched from step to step. All of them come in ``cases.WARM`` steps."""


def each_of(device: torch.device, cases: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Run several scenarios in one set of processes. One that raises on all ranks does not stop the others."""
    found: list[Any] = []
    for name, arguments in cases:
        try:
            found.append(globals()[name](device, **arguments))
        except Exception:
            found.append({"error": traceback.format_exc()[-3000:]})
    return found


def trained(device: torch.device, **arguments: Any) -> dict[str, Any]:
    """Train the exact model; see ``exact.train``."""
    return exact.train(device, **arguments)


def on_streams(device: torch.device, scenario: str, whole: bool = False, **arguments: Any) -> dict[str, Any]:
    """Run a scenario with the exchange that a GPU has, on simulated streams that do everything at once.

    ``whole``: also with the messages that a GPU makes.
    """
    from tests.support.streams.at_once import streams_for_agents

    with streams_for_agents(whole=whole):
        found: dict[str, Any] = globals()[scenario](device, **arguments)
    return found


def unwaited(device: torch.device, steps: int, first: int, **arguments: Any) -> dict[str, Any]:
    """Train while torch raises where the host waits for the GPU. On the CPU there is nothing to wait for.

    ``compiled`` of the result: kernels that were compiled after the agent had started.
    """
    compiled: list[str] = []
    if device.type == "cuda":
        import triton

        from gravac import kernels

        kernels.warm()  # what the agent does when it starts
        triton.knobs.runtime.jit_post_compile_hook = lambda **given: compiled.append(str(given.get("repr")))

    @contextmanager
    def strict() -> Iterator[None]:
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")

    try:
        found = exact.train(device, steps=steps, strict=(first, strict), **arguments)
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    return found | {"strict_steps": steps - first, "compiled": compiled}


def profiled(device: torch.device, steps: int, first: int, folder: str, **arguments: Any) -> dict[str, Any]:
    """Profile whole steps. Returns what synchronizes, and the copies to the host, between first and last."""
    file = Path(folder) / f"trace-{dist.get_rank()}.json"
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)

    @contextmanager
    def watched() -> Iterator[None]:
        with torch.profiler.profile(activities=activities) as profiler:
            with torch.profiler.record_function(trace.SPAN):
                yield
            if device.type == "cuda":
                torch.cuda.synchronize()  # what the steps started ends inside the profile, and after the span
        profiler.export_chrome_trace(str(file))

    # The first step of such a window that is surveyed is the 34th.
    exact.train(device, steps=steps, strict=(first, watched), window=100, **arguments)
    return trace.waits(json.loads(file.read_text())) | {"steps": steps - first}


class Net(nn.Module):
    """A net of a few layers, for what needs a real forward and backward."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers))
        )
        self.scores = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.layers(x))
        return scores


def learning(
    device: torch.device, compiled: str | None = None, precision: str = "float32", steps: int = 30
) -> dict[str, Any]:
    """Train a net with Top-k 10 %.

    Args:
        device: Where.
        compiled: ``outside``: ``torch.compile`` of the DDP module; ``inside``: DDP of the compiled net; None: neither.
        precision: ``float32``, ``bfloat16`` (parameters too), or ``float16`` (autocast with a GradScaler).
        steps: How many.
    """
    torch.manual_seed(0)
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    net: Any = Net(128 if compiled is None else 512).to(
        device, torch.bfloat16 if precision == "bfloat16" else torch.float32
    )
    if compiled == "inside":
        net = torch.compile(net, backend=backend)
    # torch's compiler refuses buckets smaller than DDP's first one, of 1 MB.
    module: Any = DistributedDataParallel(net, bucket_cap_mb=0.1 if compiled is None else 1.1)
    if compiled == "outside":
        module = torch.compile(module, backend=backend)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    half = precision == "float16"
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=half)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    x = torch.randn(256, 128 if compiled is None else 512, generator=generator)
    targets = x[:, :10].argmax(1).to(device)
    x = x.to(device, torch.bfloat16 if precision == "bfloat16" else torch.float32)
    losses = []
    scaling = {"scaler": scaler} if half else {}
    agent = Agent(
        module, optimizer, policy="static:cf=10,epsilon=0.001", controller=None, window=5, **scaling
    )
    with agent:
        for _ in range(steps):
            with torch.autocast(device.type, torch.float16, enabled=half):
                loss = cross_entropy(module(x).float(), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.detach())
        state = agent.state
    assert state is not None
    after = [parameter.detach().float().cpu() for parameter in module.parameters()]
    return {
        "first": float(losses[0]),
        "last": float(losses[-1]),
        "compression": state.dense_bytes / state.payload_bytes,
        "parameters": exact.digest(after),
        "finite": all(bool(one.isfinite().all()) for one in after),
    }


def sharded(
    device: torch.device, compressor: str = "topk+bf16", cf: float = 8.0, steps: int = 10
) -> dict[str, Any]:
    """Train a model whose gradients are known, sharded by FSDP2."""
    torch.manual_seed(0)
    model = exact.Parts()
    model.to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in model.parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=exact.RATE)
    policy = f"static:cf={cf}" if cf > 1.0 else "dense"
    with Agent(model, optimizer, compressor=compressor, policy=policy, controller=None) as agent:
        for step in range(steps):
            made = exact.gradients(dist.get_rank(), step, exact.SIZES, torch.float32)
            model(*(one.to(device) for one in made)).backward()
            optimizer.step()
            optimizer.zero_grad()
        agent.state_dict()  # ends the step in flight
        state = agent.state
        assert agent._parts is not None
        executor = type(agent._parts.executor).__name__
    assert state is not None
    after = [one.detach().to_local().cpu() for one in model.parameters()]  # type: ignore[attr-defined]
    return {
        "parameters": exact.digest(after),
        "finite": all(bool(one.isfinite().all()) for one in after),
        "executor": executor,
        "compression": state.dense_bytes / max(1, state.payload_bytes),
    }


def sharded_steps(device: torch.device) -> list[dict[str, Any]]:
    """Time steps of a GPT under FSDP2, plain and with the agent; of a tiny one on the CPU."""
    from tools.gpu.measure.cost import measured  # only here: the other scenarios do without the laboratory

    return measured(
        device, "sharded:against_fsdp", shape="124m, 8 sequences" if device.type == "cuda" else "tiny"
    )


def captured(device: torch.device) -> dict[str, Any]:
    """Capture a step into a CUDA graph, which would freeze the plan: the agent must say so."""
    if device.type != "cuda":
        return {"said": None}
    said = ""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):  # as torch asks of DDP that will be captured
        module = DistributedDataParallel(exact.Exact().to(device), bucket_cap_mb=exact.CAP_MB)
        optimizer = torch.optim.SGD(module.parameters(), lr=exact.RATE)
        batch = [g.to(device) for g in exact.gradients(0, 0, exact.SIZES, torch.float32)]
        with Agent(module, optimizer, controller=None, policy="static:cf=10"):
            for _ in range(
                12
            ):  # in the first ten, DDP itself asks its events for times, which no capture allows
                module(*batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
                    module(*batch).backward()
            except Exception:
                said += traceback.format_exc()[-4000:]
            try:
                optimizer.step()  # nothing of the agent's raises in backward
            except Exception:
                said += traceback.format_exc()[-4000:]
    return {"said": said}
