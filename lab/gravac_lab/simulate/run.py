"""One run: a recipe learned under one plan, as a row of numbers with the whole curve."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from gravac.version import __version__
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.tick import NAMES
from gravac_lab.simulate.accordion import Accordion, AccordionPlan, parse_accordion
from gravac_lab.simulate.learning import Learner, alone
from gravac_lab.simulate.lgreco import Lgreco, LgrecoPlan, parse_lgreco
from gravac_lab.simulate.plans import MOST_REPEATS, StaticPlan, parse
from gravac_lab.simulate.ranks import SimulatedRanks, buckets_in, layers_of
from gravac_lab.tasks import Recipe, Score, elements_of, evaluate, make
from gravac_lab.tournament.rows import ACCORDION, LGRECO

MEASURED_ALONE = 2
"""Ranks that are trained for the plan ``alone``. The mean of their losses counts."""
ROUNDING = 2.0**-9
"""Relative rounding errors of the gradients in a repetition of dense: those of bfloat16."""
IDLE_COMPRESSOR = "topk"
"""What the channels of a dense run are built with; it sends nothing."""


def chosen_plan(text: str) -> StaticPlan | AccordionPlan | LgrecoPlan:
    """Read what a run learns under: a plan of one strength, Accordion, or L-GreCo.

    Raises:
        PlanError: There is no such plan.
    """
    kind = text.partition(":")[0]
    if kind == ACCORDION:
        return parse_accordion(text)
    return parse_lgreco(text) if kind == LGRECO else parse(text)


def learn(
    task: str,
    plan: str,
    ranks: int,
    seed: int,
    steps: int,
    points: int = 40,
    change: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> dict[str, Any]:
    """Learn a task under one plan, from the same weights and data as under any other plan.

    Args:
        task: As ``tasks.make`` reads it.
        plan: As ``chosen_plan`` reads it.
        ranks: Simulated ranks.
        seed: Of weights and data.
        steps: Length of the run.
        points: How often the held-out loss is measured, evenly spread; the last step always is.
        change: Makes the recipe that is learned from the task's.

    Returns:
        A row of plain numbers: what was run, ``curve`` (step, held-out loss, accuracy, training loss since the point
        before), ``sums`` of each signal over the run (none of ``alone``) and ``progress``, the mean over the points of
        ⟨moved, reference⟩ / ‖reference‖². ``payload_bytes`` and ``sent_bytes`` are those of a step on one rank, the
        mean of all steps. Accordion adds ``strong_share``, L-GreCo ``spread``.

    Raises:
        PlanError: There is no such plan.
        TaskError: There is no such task, or so many ranks cannot share its batch.
    """
    chosen, recipe = chosen_plan(plan), change(make(task))
    began = time.process_time()
    row: dict[str, Any] = {
        "task": task,
        "plan": plan,
        "ranks": ranks,
        "seed": seed,
        "steps": steps,
        "gravac": __version__,
        "optimizer": recipe.optimizer_kind,
        "data": recipe.data.source,
        "elements": elements_of(recipe.build_model(seed)),
    }
    every = max(1, steps // points)
    if not isinstance(chosen, StaticPlan):
        row |= _by_layer(recipe, chosen, ranks, seed, steps, every)
    elif chosen.alone:
        row |= {
            "payload_bytes": 0.0,
            "sent_bytes": 0.0,
            "curve": alone_curve(recipe, ranks, seed, steps, every),
            "sums": {},
        }
    else:
        row |= _together(recipe, chosen, ranks, seed, steps, every)
    return row | {"cpu_seconds": round(time.process_time() - began, 1)}


def _together(
    recipe: Recipe, chosen: StaticPlan, ranks: int, seed: int, steps: int, every: int
) -> dict[str, Any]:
    simulated = _ranks_for(recipe, chosen, ranks, seed)
    observe = _rounded(seed, chosen.repeat) if chosen.repeat else None
    learner = Learner(recipe, ranks, seed, steps, simulated, observe=observe)
    plan = chosen.plan()
    return _learned(learner, lambda: plan, every)


def _by_layer(
    recipe: Recipe, chosen: AccordionPlan | LgrecoPlan, ranks: int, seed: int, steps: int, every: int
) -> dict[str, Any]:
    model = recipe.build_model(seed)
    names = layers_of(model)
    buckets = [bucket for bucket, _ in buckets_in(model, names)]
    if isinstance(chosen, AccordionPlan):
        rule: Accordion | Lgreco = Accordion(chosen, buckets)
        simulated = _ranks_for(recipe, chosen.strong, ranks, seed)
    else:
        rule, simulated = Lgreco(chosen, buckets), _ranks_for(recipe, chosen.uniform, ranks, seed)
    learner = Learner(recipe, ranks, seed, steps, simulated, names, rule.observe)
    row = _learned(learner, lambda: rule.plans(recipe.schedule(learner.step, steps)), every)
    return row | rule.figures()


def _rounded(seed: int, repeat: int) -> Callable[[Sequence[Sequence[Tensor]]], None]:
    """Return what adds rounding errors to the gradients of each step, others in each repetition."""
    generator = torch.Generator().manual_seed(seed * (MOST_REPEATS + 1) + repeat)

    def observe(gradients: Sequence[Sequence[Tensor]]) -> None:
        for gradient in gradients:
            for flat in gradient:
                flat.mul_(1.0 + ROUNDING * torch.randn(flat.shape, generator=generator, dtype=torch.float32))

    return observe


def _ranks_for(recipe: Recipe, chosen: StaticPlan, ranks: int, seed: int) -> SimulatedRanks:
    elements = elements_of(recipe.build_model(seed))
    return SimulatedRanks(
        ranks,
        chosen.compressor or IDLE_COMPRESSOR,
        chosen.memory,
        collective=chosen.collective,
        elements=elements,
        seed=seed,
    )


def _learned(
    learner: Learner, plan: Callable[[], StepPlan | Sequence[StepPlan]], every: int
) -> dict[str, Any]:
    """Train to the end. ``plan`` is called before each step."""
    steps = learner.steps
    curve: list[list[float]] = []
    sums: dict[str, float] = defaultdict(float)
    ratios: list[float] = []
    losses, payload, sent = 0.0, 0, 0
    for step in range(1, steps + 1):
        done = learner.train(plan())
        losses += done.loss
        payload += done.exchanged.payload_bytes
        sent += done.exchanged.sent_bytes
        for name, value in zip(NAMES, done.exchanged.sums.values(), strict=True):
            sums[name] += value
        if step % every == 0 or step == steps:
            since = step - (curve[-1][0] if curve else 0)
            curve.append(_point(step, learner.evaluate(), losses / since))
            losses = 0.0
            if learner.reference is None:
                continue
            progress = asdict(learner.reference.pop(running=step == steps))
            del progress["steps"]
            for name, value in progress.items():
                sums[name] += value
            if progress["reference_sq"] > 0:
                ratios.append(progress["moved_dot_reference"] / progress["reference_sq"])
    row: dict[str, Any] = {"payload_bytes": payload / steps, "sent_bytes": sent / steps, "curve": curve}
    row["sums"] = {name: _short(value) for name, value in sums.items()}
    return row | ({"progress": _short(mean(ratios))} if ratios else {})


def alone_curve(recipe: Recipe, ranks: int, seed: int, steps: int, every: int) -> list[list[float]]:
    """Return the mean curve of ranks that never communicate: step, held-out loss, accuracy, training loss.

    Args:
        recipe: What is trained.
        ranks: World size, by which the data are shared; of these ranks ``MEASURED_ALONE`` are trained.
        seed: Of weights and data.
        steps: Length of the run.
        every: Steps between two points; the last step always is one.
    """
    heldout = recipe.data.heldout()
    curves: list[list[list[float]]] = []
    for rank in range(min(ranks, MEASURED_ALONE)):
        curve: list[list[float]] = []
        losses = 0.0
        for step, (loss, model) in enumerate(alone(recipe, ranks, seed, steps, rank), 1):
            losses += loss
            if step % every == 0 or step == steps:
                since = step - (curve[-1][0] if curve else 0)
                curve.append(_point(step, evaluate(model, heldout), losses / since))
                losses = 0.0
        curves.append(curve)
    return [
        [round(sum(values) / len(curves), 5) for values in zip(*points, strict=True)]
        for points in zip(*curves, strict=True)
    ]


def _point(step: int, score: Score, loss: float) -> list[float]:
    return [step, round(score.loss, 5), round(score.accuracy, 5), round(loss, 5)]


def _short(value: float) -> float:
    """Round to six digits: more than a sum of a noisy run has."""
    return float(f"{value:.6g}")
