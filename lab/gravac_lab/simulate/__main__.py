"""A policy on a task without a cluster: one simulated job under it, and one under each plan to compare it with.

``gravac simulate`` starts this program. It writes JSON lines on standard output: ``{"progress": …}`` and, for each job,
``{"row": …}``.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac import policies
from gravac.collectives import AUTO
from gravac.predict.nominal import link
from gravac_agent.errors import SetupError
from gravac_lab.programs.process import run_program
from gravac_lab.simulate.clock import ModelClock, Phase, measure_compute
from gravac_lab.simulate.job import SimulatedJob, SimulationSettings
from gravac_lab.simulate.plans import FORMS, PlanError, parse
from gravac_lab.simulate.run import alone_curve
from gravac_lab.tasks import Recipe, TaskError, elements_of, make

POINTS = 40
"""How often the held-out loss is measured, evenly spread."""


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """What one job is run under.

    Attributes:
        name: Name as it was written.
        policy: Policy as ``gravac.policies.parse`` reads it; empty: alone.
        compressor: The job's compressor.
        memory: Error memory.
        collective: How payloads meet: a name, or auto.
    """

    name: str
    policy: str
    compressor: str
    memory: str = "residual"
    collective: str = AUTO


def contender(text: str, compressor: str) -> SimulatedPolicy:
    """Read a plan or a policy.

    Args:
        text: ``dense``, ``alone``, ``CODEC@CF/MEMORY/COLLECTIVE`` (the last two may be missing) or a policy.
        compressor: Of the job, for a policy.

    Raises:
        PlanError: There is no such plan or policy.
    """
    name, _, _ = text.partition(":")
    if text not in ("dense", "alone") and ("@" not in text or name in policies.POLICIES):
        try:
            policies.parse(text)
        except ValueError as error:
            raise PlanError(f"{error}; a plan is one of {FORMS}") from None
        return SimulatedPolicy(text, text, compressor)
    plan = parse(text)
    if plan.alone or not plan.compressor:
        return SimulatedPolicy(text, "" if plan.alone else "dense", compressor)
    return SimulatedPolicy(text, f"static:cf={plan.cf:g}", plan.compressor, plan.memory, plan.collective)


def simulate(
    given: argparse.Namespace,
) -> tuple[Recipe, list[tuple[SimulatedPolicy, SimulatedJob | None]], ModelClock]:
    """Prepare the jobs, and check all of them before the first is run.

    Raises:
        PlanError: A plan or policy does not exist.
        SetupError: A compressor or memory does not exist or cannot be used.
        TaskError: The task does not exist, or so many ranks cannot share its batch.
        ValueError: The links are not in order.
    """
    recipe = make(given.task)
    recipe.batches(0, given.ranks, given.seed)
    compute = given.compute or measure_compute(recipe, given.ranks, given.seed)
    clock = ModelClock(
        elements_of(recipe.build_model(given.seed)),
        given.ranks,
        compute,
        tuple(Phase(int(step), link(float(bits), given.latency)) for bits, step in given.link),
    )
    texts = dict.fromkeys((given.policy, *given.against))
    jobs: list[tuple[SimulatedPolicy, SimulatedJob | None]] = []
    for text in texts:
        one = contender(text, given.compressor)
        job = None
        if one.policy:
            setting = SimulationSettings(
                recipe=recipe,
                policy=one.policy,
                ranks=given.ranks,
                seed=given.seed,
                steps=given.steps,
                clock=clock,
                compressor=one.compressor,
                memory=one.memory,
                collective=one.collective,
                window=given.window,
                points=POINTS,
                name=_job_name(given.name, len(jobs), one.name),
            )
            job = SimulatedJob(setting, given.data_dir)
        jobs.append((one, job))
    return recipe, jobs, clock


def run(
    given: argparse.Namespace,
    recipe: Recipe,
    jobs: list[tuple[SimulatedPolicy, SimulatedJob | None]],
    clock: ModelClock,
) -> Iterator[dict[str, Any]]:
    """Run the jobs one after the other. Yields what the program writes."""
    for one, job in jobs:
        common = {
            "name": one.name,
            "compute_seconds": clock.compute_seconds,
            "elements": clock.elements,
            "data": recipe.data.source,
            "optimizer": recipe.optimizer_kind,
        }
        if job is not None:
            for line in job.train():
                yield {"progress": f"{one.name}: {line}"}
            yield {"row": common | job.result}
            continue
        curve = alone_curve(recipe, given.ranks, given.seed, given.steps, max(1, given.steps // POINTS))
        timed = [
            [int(step), round(step * clock.compute_seconds, 6), loss, accuracy]
            for step, loss, accuracy, _ in curve
        ]
        nothing = {"payload_bytes": 0.0, "seconds": clock.compute_seconds, "plans": [], "trace": None}
        yield {"row": common | nothing | {"curve": timed}}


def _job_name(prefix: str, number: int, text: str) -> str:
    """Return the name of a job, at most 64 characters: the plans of one simulation have different ones."""
    return f"{prefix}-{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', text).strip('-')}"[:64]


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_lab.simulate", description=__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--compressor", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--link", nargs=2, action="append", required=True, metavar=("BITS", "STEP"))
    parser.add_argument("--latency", type=float, required=True)
    parser.add_argument("--compute", type=float, help="seconds; measured where it is not given")
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--name", required=True)
    given = parser.parse_args()
    try:
        prepared = simulate(given)
    except (PlanError, SetupError, TaskError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    run_program(lambda chosen: run(chosen, *prepared), given)


if __name__ == "__main__":
    main()
