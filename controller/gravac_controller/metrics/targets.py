"""Where Prometheus finds the controller and its jobs, in the form of its HTTP service discovery."""

from pydantic import Field

from gravac.protocol import JobSpec, Record
from gravac_controller.views.models import State

SERVICE_PATH = "/metrics/service"
"""The controller's own metrics."""
JOB_PATH = "/v1/jobs/{job}/metrics"
"""One job's."""


class TargetGroup(Record):
    """One thing to scrape."""

    targets: tuple[str, ...] = Field(description="host:port, as the request named us.")
    labels: dict[str, str] = Field(
        description="`__metrics_path__`, and for a job `job_name` and what can be filtered by (`__meta_gravac_…`)."
    )


def service_target(address: str) -> TargetGroup:
    """The controller. ``address``: host:port at which it is reached."""
    return TargetGroup(targets=(address,), labels={"__metrics_path__": SERVICE_PATH})


def job_target(address: str, spec: JobSpec, state: State) -> TargetGroup:
    """One job. Prometheus drops labels that begin with two underscores when it has relabelled a target."""
    labels = {
        "__metrics_path__": JOB_PATH.format(job=spec.job),
        "job_name": spec.job,
        "__meta_gravac_state": state,
        "__meta_gravac_policy": spec.policy.name,
        "__meta_gravac_compressor": spec.compressor,
        "__meta_gravac_world_size": str(spec.world_size),
    }
    return TargetGroup(targets=(address,), labels=labels)
