"""What to make of the claims: sentences with figures that follow from the jobs and the dense runs."""

import math
from collections.abc import Sequence
from statistics import median

from gravac_lab.tournament import Run, baselines
from gravac_lab.tournament.regret import Cell, Learned
from regret_parts.noise import against_others, by_repetition
from regret_parts.tables import KEPT, NEAR

NOISY = ("resnet", "vgg")
"""Tasks in which dense runs that differ by rounding errors end far apart."""
READING = """
## What to make of it

- **`auto` learns nearly what dense training learns** on text and logistic regression with the default bound. It is
  several times faster on slow links, and as fast where dense is best. All jobs retain at least {least_kept:.0%} of what
  communication is worth, and {kept} of {with_kept} jobs at least 90 %.
- **Dense runs differ, too.** Dense runs of ResNet and VGG that differ by rounding errors end up to {dense_apart:.0%}
  apart. {dense_near} of {dense} dense runs end at most 1 % above the others of their seed, as do {near} of {all_jobs}
  jobs of `auto`. {dense_missed} dense runs and {missed} jobs miss the target. Without ResNet and VGG {calm_dense_near}
  of {calm_dense} dense runs and {calm_near} of {calm} jobs are within 1 %. Of the medians over three seeds
  {dense_medians} of {dense_groups} are within 1 % for dense and {medians} of {cells} for `auto`, so the two are alike.
  Plans are compared with the median over four dense runs.
- **The collective matters.** With 4 and 8 ranks on 30 and 100 Mbit/s agents exchange quantized payloads by a compressed
  all-reduce. It rounds the mean again, and rounding to the nearest level then loses about twice as much. Static plans
  use the collective that agents choose on a link if such runs were made, and a gather otherwise.
- **The learning rate matters.** Each task has the rate at which dense training learns best. At lower rates Top-k at 25x
  to 100x seems to cost nothing.
- **What `auto` misses.** Logistic regression under AdamW keeps 98 % with Top-k 10x, though its parameters go only a
  third to two thirds of the way in the first 50 steps. `auto` takes that for a loss and holds 39 levels or 8 bits.
  Logistic regression under SGD bears Top-k 100x, because its gradient is nearly all noise. `auto` sees that after the
  first window of 50 steps, which is late in a job of 300 steps that takes a second. This is the worst regret.
- **AdamW and Top-k do not go together** ([with exceptions](adam.md)). On GPT and LSTM, Top-k 10x
  keeps 88 to 90 % of the efficiency and 25x keeps 70
  to 80 %, while rounding to 15 or 7 levels keeps 97 % and more. On images under AdamW windows show that 15 levels lose
  more than 2 %. `auto` tries them for ten steps and holds 39 levels, which keep 96 to 100 %. Under SGD, rounding at
  random to 7 levels has no visible cost.
- **Beyond 17 times fewer bytes, values in 2 bits beat values in 16 bits.** Under AdamW Top-k with `twobit` at 28x keeps
  as much as `topk+bf16` at 15x, and at 49x more than `topk+bf16` at 35x. `auto` does not choose it within its bound.
- **`bound=1` gains little** in trainings of 300 steps. It accepts plans that kept 90 % of the progress of a step in
  every simulated task, if windows show that they keep 96 %, and some of these then miss the target. Of {jobs} jobs on
  links slower than loopback, `bound=1` reaches the target first in {sooner} and the default in {later}. Only the
  default reaches it in {only_default}, and only `bound=1` in {only_unbounded}. If both do, `bound=1` takes {ratio:.2f}
  times the time in the median.
- **The best of many plans in hindsight is partly luck.** A plan chosen on other seeds does no better than `auto`. Even
  [a choice that knows η of each run](#what-any-choice-by-efficiency-reaches-of-plans-that-keep-98-of-the-efficiency) in
  advance does not match it in every cell.
- **Strengths by layer do not pay.** L-GreCo keeps 71 % at 24x on the GPT and 91 % at 20x on the LSTM. Top-k layer by
  layer keeps 83 % at 13x and 93 % at 14x. Top-k over a whole bucket, which chooses across layers, keeps 87 % and 97 %
  at 15x.
- **ConEF costs nothing visible.** Its int4 memory of 1.25 bytes per element keeps 86.6 % on the GPT under AdamW at
  Top-k 10x, and error feedback keeps 87.1 %.
- **On loopback the advice is not to compress**, for nearly all tasks, because dense steps are as fast.
"""


def reading(
    compared: Sequence[Cell], runs: Sequence[Run], target: float, default: str, unbounded: str
) -> str:
    """Return the section.

    Args:
        compared: Cells with jobs of both policies.
        runs: Static plans and repetitions of dense.
        target: Share of the steps after which the loss of dense is the target.
        default: The default policy.
        unbounded: The policy without a bound.
    """
    figures = _dense(runs, target) | _default(compared, default) | _unbounded(compared, default, unbounded)
    return READING.format(**figures)


def _dense(runs: Sequence[Run], target: float) -> dict[str, float]:
    """Return what dense runs are when compared with each other."""
    found = [
        (base.run.task.startswith(NOISY), loss, time)
        for base in baselines(runs).values()
        if len(base.curves) > 1
        for loss, time, _ in against_others(base, target)
    ]
    calm = [loss for noisy, loss, _ in found if not noisy]
    medians = [median(losses) for losses in by_repetition(runs, target)]
    return {
        "dense_groups": len(medians),
        "dense_medians": sum(loss <= NEAR for loss in medians),
        "dense": len(found),
        "dense_near": sum(loss <= NEAR for _, loss, _ in found),
        "dense_missed": sum(math.isinf(time) for *_, time in found),
        "dense_apart": max(loss for _, loss, _ in found),
        "calm_dense": len(calm),
        "calm_dense_near": sum(loss <= NEAR for loss in calm),
    }


def _default(compared: Sequence[Cell], policy: str) -> dict[str, float]:
    """Return what jobs of the default policy learned."""
    cells = [pair for pair in compared if policy in pair.jobs]
    learned = [(cell, each) for cell in cells for each in cell.learned[policy]]
    kept = [each.retained for _, each in learned if each.retained is not None]
    calm = [each for one, each in learned if not one.task.startswith(NOISY)]
    times = [time for cell in cells for time in cell.jobs[policy].times]
    return {
        "all_jobs": len(times),
        "missed": sum(map(math.isinf, times)),
        "near": _near([each for _, each in learned]),
        "cells": len(cells),
        "medians": sum(median(each.above_dense for each in cell.learned[policy]) <= NEAR for cell in cells),
        "calm": len(calm),
        "calm_near": _near(calm),
        "least_kept": min(kept),
        "kept": sum(value >= KEPT for value in kept),
        "with_kept": len(kept),
    }


def _near(learned: Sequence[Learned]) -> int:
    return sum(each.above_dense <= NEAR for each in learned)


def _unbounded(compared: Sequence[Cell], default: str, unbounded: str) -> dict[str, float]:
    """Return how jobs without a bound compare with those of the default in the same cell and seed, on slow links."""
    found = dict.fromkeys(("jobs", "sooner", "later", "only_default", "only_unbounded"), 0)
    ratios = []
    for pair in compared:
        if pair.link == "loopback" or default not in pair.jobs or unbounded not in pair.jobs:
            continue
        ours, other = (
            dict(zip(job.seeds, job.times, strict=True)) for job in (pair.jobs[default], pair.jobs[unbounded])
        )
        for seed in ours.keys() & other.keys():
            here, there = ours[seed], other[seed]
            found["jobs"] += 1
            found["only_default"] += math.isinf(there) and not math.isinf(here)
            found["only_unbounded"] += math.isinf(here) and not math.isinf(there)
            if not math.isinf(here) and not math.isinf(there):
                ratios.append(there / here)
                found["sooner"] += there < here
                found["later"] += here < there
    return found | {"ratio": median(ratios)}
