"""Simulated jobs: real reports that follow the decisions, without any training."""

import http.client

from gravac.policies import GravacPolicy
from gravac.protocol import (
    Decision,
    Environment,
    GainSums,
    JobAnswer,
    JobSpec,
    LevelSums,
    ModelShape,
    PhaseSeconds,
    RankRow,
    SmoothedGain,
    WindowAnswer,
    WindowReport,
)
from load_parts.service import Service, send

STEPS = 50
PHASES = PhaseSeconds(data_wait=0.5, compute=5.0, compress=1.0, communicate=3.0, decompress=0.25)


class SimulatedJob:
    """One job of ``ranks`` ranks. ``report`` sends a window on the job's connection; other senders use ``body`` and
    ``answered``."""

    def __init__(self, service: Service, name: str, ranks: int = 2) -> None:
        self.name, self.ranks, self.window = name, ranks, 0
        self.path = f"/v1/jobs/{name}/windows"
        self._connection: http.client.HTTPConnection = service.connection()
        spec = JobSpec(
            job=name,
            incarnation="first",
            world_size=ranks,
            window_steps=STEPS,
            policy=GravacPolicy().spec(),
            compressor="topk",
            memory="residual",
            model=ModelShape(name="Net", tensors=4, elements=1000),
            environment=Environment(
                python="3.12", torch="2.9", gravac="0.1.0", platform="Linux", backend="gloo", device="cpu"
            ),
        )
        answer = send(self._connection, "/v1/jobs", spec.model_dump_json().encode())
        self._decision = JobAnswer.model_validate_json(answer).decision

    def report(self) -> None:
        """Send the next window and apply the decision on it."""
        self.answered(send(self._connection, self.path, self.body()))

    def body(self) -> bytes:
        """Return the next window as JSON."""
        return window(self.name, self.window, self.ranks, self._decision).model_dump_json().encode()

    def answered(self, body: bytes) -> None:
        """Apply the answer: the next window follows its decision."""
        self._decision = WindowAnswer.model_validate_json(body).decision
        self.window += 1

    def close(self) -> None:
        self._connection.close()


def window(job: str, number: int, ranks: int, decision: Decision) -> WindowReport:
    """Return a window under ``decision``: a dense step takes 1.1 s, of which 1 s scales with 1 / CF."""
    cf = decision.cf_candidate
    seconds = 0.1 + 1.0 / cf
    sums = GainSums(
        steps=STEPS * ranks,
        gradient_sq=2.5,
        compensated_sq=3.5,
        sent_sq=3.0,
        minimum_sq=3.0,
        candidate_sq=2.0,
        residual_sq=1.5,
        residual_dot_gradient=-0.25,
    )
    level = LevelSums(
        epoch=decision.epoch,
        cf=cf,
        steps=STEPS,
        settled_steps=STEPS - 5,
        step_seconds_median=seconds,
        exposed_seconds_median=1.0 / cf,
        dense_bytes=400_000,
        payload_bytes=int(400_000 / cf),
        sums=sums,
    )
    rows = tuple(
        RankRow(
            rank=rank,
            steps=STEPS,
            step_seconds=STEPS * seconds,
            phases=PHASES,
            samples=1600,
            nonfinite_steps=0,
            failed_steps=0,
            memory_bytes=4096,
        )
        for rank in range(ranks)
    )
    return WindowReport(
        job=job,
        incarnation="first",
        window=number,
        first_step=number * STEPS,
        last_step=(number + 1) * STEPS - 1,
        epoch=decision.epoch,
        phase=decision.phase,
        cf=cf,
        seconds=STEPS * seconds,
        samples=1600 * ranks,
        dense_bytes=400_000,
        payload_bytes=int(400_000 / cf),
        loss=2.0,
        nonfinite_steps=0,
        failed_steps=0,
        levels=(level,),
        gains=tuple(SmoothedGain(cf=value, gain=min(1.0, 3.0 / value)) for value in {cf} if value > 1),
        phases=PHASES,
        ranks=rows,
    )
