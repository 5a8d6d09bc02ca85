"""A made-up trainer: valid reports that follow the decisions it is given, as a real one's would."""

from dataclasses import dataclass, field

from gravac.protocol import (
    Decision,
    HostLinks,
    JobAnswer,
    JobSpec,
    PhaseSeconds,
    PolicySpec,
    RankRow,
    WindowAnswer,
    WindowReport,
)
from tools.harness.cluster import Cluster, job_spec
from tools.harness.controller import Controller


def spec(job: str = "job", **changes: object) -> JobSpec:
    """A job of two ranks, under GraVAC unless ``policy`` is given."""
    return job_spec(**({"policy": PolicySpec(name="gravac", settings={}), "job": job} | changes))  # type: ignore[arg-type]


def two_hosts(ranks: int = 2, between: float = 3e6) -> HostLinks:
    """The links of a job of two hosts with so many ranks each, which have ``between`` bytes a second to the others."""
    return HostLinks(
        hosts=2,
        ranks=ranks,
        inside_latency_seconds=1e-4,
        inside_bytes_per_second=1e9,
        between_latency_seconds=1e-3,
        between_bytes_per_second=between,
    )


@dataclass
class Trainer:
    """Makes the windows of one job. ``world_size`` rank rows each; numbers that differ from window to window."""

    job: str = "job"
    incarnation: str = "first"
    world_size: int = 2
    cluster: Cluster = field(default_factory=lambda: Cluster(network_seconds=0.4))
    window: int = 0

    def report(self, decision: Decision, **changes: object) -> WindowReport:
        """The next window under ``decision``."""
        number, self.window = self.window, self.window + 1
        base = self.cluster.report(number, decision)
        phases = PhaseSeconds(
            data_wait=0.5, compute=5.0, compress=1.0, communicate=3.0 + number / 64, decompress=0.25
        )
        rows = tuple(
            RankRow(
                rank=rank,
                steps=50,
                step_seconds=9.75 + rank,
                phases=phases.model_copy(update={"compute": 5.0 + rank}),
                samples=1600,
                nonfinite_steps=0,
                failed_steps=0,
                memory_bytes=4096 * (rank + 1),
                agent_cpu_seconds=0.25 if rank == 0 else None,
            )
            for rank in range(self.world_size)
        )
        given: dict[str, object] = {
            "job": self.job,
            "incarnation": self.incarnation,
            "dense_bytes": 400_000 + number,
            "payload_bytes": int(400_000 / base.cf) + number,
            "loss": 2.0 / (1 + number),
            "phases": phases,
            "ranks": rows,
        }
        return base.model_copy(update=given | changes)


class PostedJob:
    """A job on a controller: ``windows(n)`` posts the next n windows of its trainer."""

    def __init__(self, controller: Controller, name: str, token: str = "", **changes: object) -> None:
        self.controller, self.trainer = controller, Trainer(name)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = controller.ask("POST", "/v1/jobs", spec(name, **changes), headers)
        self.decision: Decision = JobAnswer.model_validate_json(answer.body).decision

    def windows(self, count: int) -> None:
        for _ in range(count):
            report = self.trainer.report(self.decision)
            answer = self.controller.ask("POST", f"/v1/jobs/{self.trainer.job}/windows", report)
            self.decision = WindowAnswer.model_validate_json(answer.body).decision
