"""The requests that an agent makes of a controller. Each raises NoAnswer for anything but a valid answer."""

from gravac.protocol import End, Event, JobAnswer, JobSpec, WindowAnswer, WindowReport
from gravac_agent.reporting.answers import check_echo, check_registration, read_answer
from gravac_agent.reporting.client import Connection


def resumed(spec: JobSpec, policy_state: str | None, first_window: int | None) -> JobSpec:
    """Return the spec with what the agent knows, so that a controller that lost its folder goes on from there."""
    if policy_state is None:
        return spec
    window = spec.first_window if first_window is None else first_window
    return spec.model_copy(update={"policy_state": policy_state, "first_window": window})


def register(connection: Connection, spec: JobSpec) -> JobAnswer:
    """Begin or resume the job. Returns the decision in force and the number of the next window."""
    answer = read_answer(JobAnswer, connection.post("/v1/jobs", spec.model_dump_json()))
    check_registration(answer, spec)
    return answer


def report(connection: Connection, job: str, record: WindowReport | Event | End) -> WindowAnswer | None:
    """Deliver a record, which is on disk when this returns. Returns the answer to a window; None for the others."""
    path = f"/v1/jobs/{job}/"
    if isinstance(record, WindowReport):
        return read_answer(WindowAnswer, connection.post(path + "windows", record.model_dump_json()))
    if isinstance(record, Event):
        check_echo(connection.post(path + "events", record.model_dump_json()), "event", record)
    else:
        check_echo(connection.post(path + "end", record.model_dump_json()), "job", job)
    return None
