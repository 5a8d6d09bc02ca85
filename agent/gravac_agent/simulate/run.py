"""One run: a recipe learned under one plan, as a row of numbers with the whole curve."""

import time
from dataclasses import asdict
from typing import Any

from gravac.version import __version__
from gravac_agent.exchange.tick import NAMES
from gravac_agent.simulate.learning import Learner, alone
from gravac_agent.simulate.plans import StaticPlan, parse
from gravac_agent.simulate.ranks import SimulatedRanks
from gravac_agent.tasks import Score, evaluate, make

MEASURED_ALONE = 2
"""Ranks that are trained for the plan ``alone``; the mean of their losses counts."""


def learn(task: str, plan: str, ranks: int, seed: int, steps: int, points: int = 40) -> dict[str, Any]:
    """Learn a task under one plan, from the same weights and data as any other plan.

    Args:
        task: As ``tasks.make`` reads it.
        plan: As ``plans.parse`` reads it.
        ranks: Simulated ranks.
        seed: Of weights and data.
        steps: Length of the run.
        points: How often the held-out loss is measured, evenly spread; the last step always is.

    Returns:
        A row of plain numbers: what was run, ``curve`` (step, held-out loss, accuracy, training loss since the point
        before) and, for all plans but ``alone``, ``signals`` between the points.
    """
    chosen = parse(plan)
    began = time.process_time()
    row: dict[str, Any] = {
        "task": task,
        "plan": plan,
        "ranks": ranks,
        "seed": seed,
        "steps": steps,
        "gravac": __version__,
    }
    row |= (
        _alone(task, ranks, seed, steps, points)
        if chosen.alone
        else _together(task, chosen, ranks, seed, steps, points)
    )
    return row | {"cpu_seconds": round(time.process_time() - began, 1)}


def _together(
    task: str, chosen: StaticPlan, ranks: int, seed: int, steps: int, points: int
) -> dict[str, Any]:
    recipe = make(task)
    elements = sum(one.numel() for one in recipe.build_model(seed).parameters() if one.requires_grad)
    compressor = chosen.compressor or "topk"
    learner = Learner(
        recipe,
        ranks,
        seed,
        steps,
        SimulatedRanks(ranks, compressor, chosen.memory, elements=elements, seed=seed),
    )
    plan, every = chosen.plan(), max(1, steps // points)
    curve: list[list[float]] = []
    signals: list[dict[str, float]] = []
    losses, sums, payload = 0.0, dict.fromkeys(NAMES, 0.0), 0
    for step in range(1, steps + 1):
        done = learner.train(plan)
        losses += done.loss
        payload += done.exchanged.payload_bytes
        for name, value in zip(NAMES, done.exchanged.sums.values(), strict=True):
            sums[name] += value
        if step % every == 0 or step == steps:
            since = step - (curve[-1][0] if curve else 0)
            curve.append(_point(step, learner.evaluate(), losses / since))
            progress = learner.reference.pop()
            signals.append(
                {name: _short(value) for name, value in sums.items()}
                | {name: _short(value) for name, value in asdict(progress).items() if name != "steps"}
            )
            losses, sums = 0.0, dict.fromkeys(NAMES, 0.0)
    return {
        "optimizer": recipe.optimizer_kind,
        "elements": elements,
        "payload_bytes": payload / steps,
        "curve": curve,
        "signals": signals,
    }


def _alone(task: str, ranks: int, seed: int, steps: int, points: int) -> dict[str, Any]:
    recipe = make(task)
    every, count = max(1, steps // points), min(ranks, MEASURED_ALONE)
    heldout = recipe.data.heldout()
    curves: list[list[list[float]]] = []
    elements = 0
    for rank in range(count):
        curve: list[list[float]] = []
        losses = 0.0
        for step, (loss, model) in enumerate(alone(recipe, ranks, seed, steps, rank), 1):
            losses += loss
            if step % every == 0 or step == steps:
                curve.append(
                    _point(step, evaluate(model, heldout), losses / (step - (curve[-1][0] if curve else 0)))
                )
                losses = 0.0
                elements = sum(one.numel() for one in model.parameters() if one.requires_grad)
        curves.append(curve)
    mean = [
        [round(sum(values) / count, 5) for values in zip(*points_, strict=True)]
        for points_ in zip(*curves, strict=True)
    ]
    return {
        "optimizer": recipe.optimizer_kind,
        "elements": elements,
        "payload_bytes": 0.0,
        "curve": mean,
        "signals": [],
    }


def _point(step: int, score: Score, loss: float) -> list[float]:
    return [step, round(score.loss, 5), round(score.accuracy, 5), round(loss, 5)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
