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

- With the default bound `auto` learns nearly what dense learns on text and logistic regression, several times faster on
  slow links and as fast where dense is best. All jobs retain at least {least_kept:.0%} of what communication is worth,
  {kept} of {with_kept} at least 90 %.
- **What dense itself does.** Dense runs of ResNet and VGG that differ by rounding errors end up to {dense_apart:.0%}
  apart. Of {dense} dense runs {dense_near} end at most 1 % above the others of their seed, and {dense_missed} miss the
  target that the others set; of {all_jobs} jobs of `auto` {near} and {missed}. Without ResNet and VGG {calm_dense_near}
  of {calm_dense} dense runs and {calm_near} of {calm} jobs are within 1 %. Medians over three seeds: {dense_medians} of
  {dense_groups} for dense, {medians} of {cells} for `auto`: by this measure the two are alike. Plans are
  compared with the median over four dense runs.
- **The collective matters.** With 4 and 8 ranks on 30 and 100 Mbit/s agents exchange quantized payloads by a compressed
  all-reduce, which rounds the mean again: rounding to the nearest level then loses about twice as much. Static plans
  take the collective that agents choose on a link where such runs were made, else a gather.
- Each task has the learning rate at which dense training learns best. Until 2026-11-24 four tasks had not, and there
  Top-k at 25x to 100x seemed to cost nothing, or less than that. At the best rate it costs what it costs elsewhere.
- What it leaves on the table: logistic regression under AdamW keeps 98 % with Top-k 10x, though its parameters go a
  third to two thirds of the way in the first 50 steps. `auto` takes that for a loss, and holds 39 levels or 8 bits.
  Logistic regression under SGD bears Top-k 100x, as its gradient is nearly all noise. `auto` sees that in the first
  window of 50 steps and sends Top-k from then on: in a job of 300 steps, which takes a second, it is late by then. This
  is the worst regret.
- **AdamW and Top-k do not go together**: on GPT and LSTM, Top-k 10x keeps 88 to 90 % of the efficiency and 25x 70 to
  80 %, where rounding to 15 or 7 levels keeps 97 % and more. On images under AdamW windows show that 15 levels lose
  more than 2 %: `auto` tries them for ten steps and holds 39 levels, which keep 96 to 100 %. Under SGD, rounding at
  random to 7 levels costs nothing that can be seen.
- Beyond 17 times fewer bytes, values in 2 bits beat values in 16: under AdamW Top-k with `twobit` at 28x keeps as much
  as `topk+bf16` at 15x, and at 49x more than that at 35x. `auto` does not choose it within its bound.
- `bound=1` gains little in trainings of 300 steps. It takes plans that kept 90 % of the progress of a step in every
  simulated task, while windows show that they keep 96 %, and some of these then miss the target. Of {jobs} jobs on
  links slower than loopback it is sooner at the target than the default in {sooner}, the default in {later}; in
  {only_default} only the default reaches it, in {only_unbounded} only `bound=1`. Where both do, `bound=1` takes
  {ratio:.2f} times the time in the median.
- The best of many plans in hindsight is partly luck. Chosen on other seeds it does no better than `auto`, and even [a
  choice that knows η of each run](#what-any-choice-by-efficiency-reaches-of-plans-that-keep-98-of-the-efficiency) in
  advance does not match it in every cell.
- Strengths by layer do not pay: L-GreCo keeps 71 % at 24x on the GPT and 91 % at 20x on the LSTM, Top-k layer by layer
  83 % at 13x and 93 % at 14x, and Top-k over a whole bucket, which chooses across layers, 87 % and 97 % at 15x.
- ConEF's int4 memory, 1.25 bytes an element, keeps 86.6 % on the GPT under AdamW at Top-k 10x, error feedback 87.1 %:
  no difference beyond the noise.
- Where dense is as fast, the advice is not to compress: on loopback, for nearly all tasks.
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
    cells = [one for one in compared if policy in one.jobs]
    learned = [(one, each) for one in cells for each in one.learned[policy]]
    kept = [each.retained for _, each in learned if each.retained is not None]
    calm = [each for one, each in learned if not one.task.startswith(NOISY)]
    times = [time for one in cells for time in one.jobs[policy].times]
    return {
        "all_jobs": len(times),
        "missed": sum(map(math.isinf, times)),
        "near": _near([each for _, each in learned]),
        "cells": len(cells),
        "medians": sum(median(each.above_dense for each in one.learned[policy]) <= NEAR for one in cells),
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
    for one in compared:
        if one.link == "loopback" or default not in one.jobs or unbounded not in one.jobs:
            continue
        ours, other = (
            dict(zip(job.seeds, job.times, strict=True)) for job in (one.jobs[default], one.jobs[unbounded])
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
