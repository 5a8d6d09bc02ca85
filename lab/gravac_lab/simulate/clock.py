"""Step times of a simulated job: what a step takes on a network that may change during the job."""

import time
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from gravac.collectives import AUTO, Network
from gravac.predict.nominal import NominalJob
from gravac_agent.windows.meters import StepTimes
from gravac_lab.tasks import Recipe, loss_of

MEASURED_STEPS = 7
"""Steps that are timed for the computation of a rank."""
UNTIMED_STEPS = 2
"""Steps before them: the first ones allocate memory."""


class Clock(Protocol):
    """Gives the duration of a step."""

    def network(self, step: int) -> Network:
        """Return the network between the ranks at a step."""
        ...

    def times(
        self,
        step: int,
        compressor: str,
        cf: float,
        payload_bytes: float,
        collective: str = AUTO,
        aged: bool = False,
    ) -> StepTimes:
        """Return the times of a step.

        Args:
            step: Its number; a network may change during a job.
            compressor: What it sends with.
            cf: Compression factor asked for; 1: dense.
            payload_bytes: Handed to collectives by each rank.
            collective: The job's, or auto.
            aged: Whether the optimizer ages, as ``JobSpec.aged``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Phase:
    """A network from one step on."""

    first_step: int
    network: Network


@dataclass(frozen=True, slots=True)
class ModelClock:
    """Step times by ``gravac.predict.nominal``.

    Args:
        elements: Of the gradient.
        ranks: World size.
        compute_seconds: Forward, backward and optimizer of a rank.
        phases: Networks by the step from which they hold, in order; the first is 0.

    Raises:
        ValueError: The phases do not begin at step 0 or are not in order.
    """

    elements: int
    ranks: int
    compute_seconds: float
    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        first = [phase.first_step for phase in self.phases]
        if first[:1] != [0] or first != sorted(set(first)):
            raise ValueError(
                f"phases={first} must begin at step 0 and be in order: the first network holds from step 0, each other "
                "one from a later step"
            )

    def network(self, step: int) -> Network:
        return next(phase.network for phase in reversed(self.phases) if phase.first_step <= step)

    def times(
        self,
        step: int,
        compressor: str,
        cf: float,
        payload_bytes: float,
        collective: str = AUTO,
        aged: bool = False,
    ) -> StepTimes:
        job = NominalJob(self.elements, self.ranks, self.compute_seconds, collective, aged=aged)
        found = job.step(compressor, cf, self.network(step), payload_bytes)
        return StepTimes(
            seconds=found.seconds,
            data_wait=0.0,
            compute=found.compute,
            compress=found.compress,
            communicate=found.exposed,
            decompress=found.decompress,
        )


def measure_compute(recipe: Recipe, ranks: int, seed: int) -> float:
    """Measure forward, backward and optimizer of one rank on this machine.

    Args:
        recipe: What is trained; a rank has its share of the global batch.
        ranks: World size.
        seed: Of weights and data.

    Returns:
        Seconds of a step, the median of a few.
    """
    model, batches = recipe.build_model(seed), recipe.batches(0, ranks, seed)
    optimizer = recipe.optimizer(model.parameters())
    found = []
    for _ in range(UNTIMED_STEPS + MEASURED_STEPS):
        inputs, classes = next(batches)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model(inputs), classes).backward()
        recipe.clip(model.parameters())
        optimizer.step()
        found.append(time.perf_counter() - began)
    return median(found[UNTIMED_STEPS:])
