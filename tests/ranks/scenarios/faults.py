"""Ranks that disagree, codecs that fail, a rank that raises."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import gravac.optim
from gravac_agent import Agent, AgreementError
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.setup import build
from tests.ranks.scenarios.model import fingerprint, train, wrapped


def disagreement(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Rank 1 is made to plan another CF: both ranks must find out before a collective of another shape."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    issued: list[float] = []
    try:
        with Agent(
            module, optimizer, data_dir=folder, controller=None, policy="static:cf=10", window=50
        ) as agent:
            parts = agent._parts
            assert parts is not None
            begin_step = parts.executor.begin_step

            def note(plan: StepPlan, number: int, surveyed: bool) -> None:
                issued.append(plan.cf)
                begin_step(plan, number, surveyed)

            parts.executor.begin_step = note  # type: ignore[method-assign]

            def spoil(step: int) -> None:
                if step == 20 and rank == 1:
                    parts.loop.schedule.announcement.following = StepPlan(
                        parts.loop.schedule.following.directive, 20.0
                    )

            for step in range(40):
                spoil(step)
                train(module, optimizer, rank, range(step, step + 1))
    except AgreementError as error:
        return {"error": str(error), "issued": sorted(set(issued)), "step": len(issued)}
    return {"error": None, "issued": sorted(set(issued)), "step": len(issued)}


def settings_differ(rank: int, world: int, folder: str) -> list[str]:
    """Ranks started with different windows, with different policies, and with a different β₁."""
    module = wrapped()
    sgd = torch.optim.SGD(module.parameters(), lr=0.05)
    adamw = gravac.optim.AdamW(module.parameters(), betas=((0.9, 0.5)[rank], 0.99))
    errors = []
    cases: list[tuple[torch.optim.Optimizer, dict[str, Any]]] = [
        (sgd, {"policy": "dense", "window": 10 + rank}),
        (sgd, {"policy": ("auto", "dense")[rank]}),
        (sgd, {"policy": ("auto", "auto:plans=topk@10")[rank]}),
        (adamw, {"policy": "static:cf=10"}),
    ]
    for optimizer, case in cases:
        try:
            with Agent(module, optimizer, data_dir=folder, controller=None, **case):
                pass
        except AgreementError as error:
            errors.append(str(error))
    return errors


def failing_codec(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Compression raises on one rank at one step: no rank falls back alone, nothing is lost, ranks stay equal."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=10", window=5) as agent:
        parts = agent._parts
        assert parts is not None
        codec = parts.executor.channels.aggregator.compressor  # type: ignore[attr-defined]
        compress = codec.compress
        armed = {"now": False}

        def broken(*arguments: Any) -> Any:
            if armed["now"]:
                raise RuntimeError("deliberate")
            return compress(*arguments)

        codec.compress = broken  # type: ignore[method-assign]
        for step in range(20):
            armed["now"] = step == 10 and rank == 1
            train(module, optimizer, rank, range(step, step + 1))
        residuals = sum(float(t.abs().sum()) for t in parts.memory.state_dict().values())
    return {"parameters": fingerprint(module), "residuals": residuals}


def one_fails(rank: int, world: int, folder: str) -> None:
    """Rank 1 raises; rank 0 would wait for it for a long time."""
    if rank == 1:
        raise RuntimeError("deliberate")
    time.sleep(60)


KEPT: list[Any] = []
"""What ``leaves`` opens and nobody closes."""


def leaves(rank: int, world: int, folder: str, what: str) -> int:
    """Rank 1 leaves something behind that the next scenario would find. Returns the process."""
    if rank == 1:
        if what == "thread":
            threading.Thread(target=time.sleep, args=(60,), name="left over", daemon=True).start()
        elif what == "file":
            KEPT.append(os.open(Path(folder, "left over"), os.O_WRONLY | os.O_CREAT))
        elif what == "hook":
            KEPT.append(register_optimizer_step_pre_hook(_nothing))
        elif what == "handler":
            logging.getLogger("gravac.agent").addHandler(logging.NullHandler())
        elif what == "function":
            build.connect = _nothing  # type: ignore[assignment]
        elif what == "setting":
            os.environ["GRAVAC_POLICY"] = "dense"
    return os.getpid()


def _nothing(*_: Any) -> None:
    pass
