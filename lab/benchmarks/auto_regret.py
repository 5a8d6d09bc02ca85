"""Regret of the auto policy: its time to target against the best static plan in hindsight that keeps the bound.

A pure world, so it takes a minute: links x ranks x compute times x hidden shares x optimizers, efficiencies up to
three points off what the policy expects, coding times off by a factor of 2, 3 % noise. The target is the progress of
400 dense steps; the dense steps at the start and all trials count.

    .venv/bin/python -m lab.benchmarks.auto_regret [--seeds N] [--steps N] [--bound SHARE] [--unprobed]
"""

import argparse
from statistics import median

from tools.harness.plan_world import Job, World

LINKS = {"30 Mbit/s": 30.0, "100 Mbit/s": 100.0, "1 Gbit/s": 1e3, "loopback": 2e4}
RANKS = (2, 4, 8)
COMPUTE = (0.05, 0.3, 1.5)


def worlds(megabits: float, ranks: int, seed: int, probed: bool) -> list[World]:
    """Return the worlds of one cell of the table."""
    return [
        World(
            ranks=ranks,
            megabits=megabits,
            compute=compute,
            hidden=hidden * compute,
            waiting=0.02 * compute,
            coding=(0.5, 1.0, 2.0)[(seed + place) % 3],
            kind=kind,
            off=0.03,
            probe=(0.8, 1.0, 1.25)[seed % 3] if probed else None,
            latency=1e-5 if megabits > 1e3 else 1e-4,
            seed=seed,
        )
        for place, compute in enumerate(COMPUTE)
        for hidden in (0.0, 0.3)
        for kind in ("sgd", "adam")
    ]


def regret(world: World, steps: float, bound: float) -> float:
    """Return the time to target relative to the best static plan, minus 1."""
    _, best = world.best_static(steps, bound)
    return Job(world, f"auto:bound={bound!r}").until(steps) / best - 1.0


def against_dense(world: World, steps: float, bound: float) -> float | None:
    """Return the time relative to dense, minus 1, where dense is best; else None."""
    plan, best = world.best_static(steps, bound)
    return None if plan.cf > 1.0 else Job(world, f"auto:bound={bound!r}").until(steps) / best - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of noise and efficiencies")
    parser.add_argument("--steps", type=float, default=400.0, help="length of a run in dense steps")
    parser.add_argument("--bound", type=float, default=0.02, help="loss of efficiency that is accepted")
    parser.add_argument("--unprobed", action="store_true", help="the network is not measured at the start")
    given = parser.parse_args()
    every: list[float] = []
    print("| link | ranks | median | worst | of it |\n|---|---:|---:|---:|---|")
    for link, megabits in LINKS.items():
        for ranks in RANKS:
            cell = [
                (regret(world, given.steps, given.bound), world)
                for seed in range(given.seeds)
                for world in worlds(megabits, ranks, seed, not given.unprobed)
            ]
            values = [each for each, _ in cell]
            every += values
            worst, where = max(cell, key=lambda each: each[0])
            what = (
                f"{where.kind}, compute {where.compute:g} s, hidden {where.hidden:g} s, coding x{where.coding:g}, "
                f"seed {where.seed}"
            )
            print(f"| {link} | {ranks} | {median(values):+.1%} | {worst:+.1%} | {what} |")
    print(f"\nall: median {median(every):+.1%}, worst {max(every):+.1%} of {len(every)} runs")


if __name__ == "__main__":
    main()
