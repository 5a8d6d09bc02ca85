"""Simulated jobs: a policy on a task and a network, compared with plans, with all ranks in one process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac_lab.bench.program import run_program
from gravac_lab.bench.ranks import Progress
from gravac_lab.bench.results import describe_machine
from gravac_lab.tournament.curves import TARGET, curve_of, efficiency, retained_value, target_level
from gravac_lab.tournament.rows import ALONE, DENSE, VALUE_BYTES

STEP, SECONDS, LOSS, ACCURACY = range(4)
"""Columns of a point of a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What to simulate.

    Attributes:
        task: Name and settings of a task.
        policy: Name and settings of a policy, or a plan.
        against: Plans and policies to compare with; dense is always run, as its curve gives the target.
        compressor: Compressor of the jobs that run a policy.
        ranks: Simulated ranks.
        steps: Length of each job.
        seed: Seed of weights, data and codecs.
        links: Nominal bandwidth of each rank's link in bits per second, by the step from which it holds.
        latency_seconds: Latency of a message.
        compute_seconds: Time of a step of one rank; None: measured on this machine.
        window: Steps between decisions.
        data_dir: Folder of the journals.
        name: What the names of the jobs begin with.
    """

    task: str
    policy: str
    against: Sequence[str]
    compressor: str
    ranks: int
    steps: int
    seed: int
    links: Sequence[tuple[int, float]]
    latency_seconds: float
    compute_seconds: float | None
    window: int
    data_dir: Path
    name: str


def simulate(simulation: Simulation, progress: Progress) -> dict[str, Any]:
    """Run the jobs one after the other, and return what was asked, the machine, and a row for each job.

    A row has its curve (step, simulated seconds, held-out loss, accuracy), and what follows from it: ``seconds`` of the
    whole job, ``seconds_to_target``, ``speedup`` (of the time to target, over dense), ``efficiency`` and ``retained``;
    None where unknown.

    Raises:
        Refused: A task, policy or plan does not exist.
        ProgramFailed: The simulation failed.
    """
    described = describe_machine()
    against = [one for one in dict.fromkeys((DENSE, *simulation.against)) if one != simulation.policy]
    words: list[object] = []
    for name in (
        "task",
        "policy",
        "compressor",
        "ranks",
        "steps",
        "seed",
        "window",
        "data_dir",
        "name",
    ):
        words += [f"--{name.replace('_', '-')}", getattr(simulation, name)]
    for step, bits in simulation.links:
        words += ["--link", bits, step]
    words += ["--latency", simulation.latency_seconds, "--against", *against]
    if simulation.compute_seconds is not None:
        words += ["--compute", simulation.compute_seconds]
    rows = run_program("gravac_lab.simulate", words, progress)["rows"]
    return {
        "machine": described,
        "task": simulation.task,
        "policy": simulation.policy,
        "compressor": simulation.compressor,
        "ranks": simulation.ranks,
        "steps": simulation.steps,
        "seed": simulation.seed,
        "window": simulation.window,
        "links": [{"first_step": step, "bits_per_second": bits} for step, bits in simulation.links],
        "latency_seconds": simulation.latency_seconds,
        "compute_seconds": rows[0]["compute_seconds"],
        "compute_measured": simulation.compute_seconds is None,
        "elements": rows[0]["elements"],
        "data": rows[0]["data"],
        "optimizer": rows[0]["optimizer"],
        "target": TARGET,
        **compared(rows),
    }


def compared(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return ``target_loss``, and ``rows`` with what follows from comparing each with dense and, if there, alone."""
    by_name = {row["name"]: row for row in rows}
    dense = by_name[DENSE]["curve"]
    by_step, by_time = curve_of(dense, STEP, LOSS), curve_of(dense, SECONDS, LOSS)
    level, lone = target_level(by_step, TARGET), by_name.get(ALONE)
    base = by_time.reaches(level)
    found = []
    for row in rows:
        ours = curve_of(row["curve"], STEP, LOSS)
        seconds = curve_of(row["curve"], SECONDS, LOSS).reaches(level)
        payload = row["payload_bytes"]
        found.append(
            {
                "name": row["name"],
                "loss": ours.final,
                "accuracy": row["curve"][-1][ACCURACY],
                "seconds": row["curve"][-1][SECONDS],
                "step_seconds": row["seconds"],
                "seconds_to_target": seconds,
                "speedup": None if seconds is None or base is None else base / seconds,
                "payload_bytes": payload,
                "wire_cf": VALUE_BYTES * row["elements"] / payload if payload else None,
                "efficiency": efficiency(by_step, ours),
                "retained": None
                if lone is None
                else retained_value(lone["curve"][-1][LOSS], by_step.final, ours.final),
                "plans": [
                    {"first_step": step, "codec": codec, "cf": cf, "reason": reason}
                    for step, codec, cf, reason in row["plans"]
                ],
                "trace": row["trace"],
                "curve": row["curve"],
            }
        )
    return {"target_loss": level, "rows": found}
