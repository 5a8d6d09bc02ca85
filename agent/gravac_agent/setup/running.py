"""The agents that run in this process, and what they may not share."""

from collections import Counter
from dataclasses import dataclass

from gravac.wording import numbered
from gravac_agent.errors import SetupError
from gravac_agent.fsdp.model import DataParallel, named_parameters
from gravac_agent.settings import AgentSettings
from gravac_agent.setup.describe import job_name


@dataclass(slots=True, eq=False)
class RunningAgent:
    """What other agents of this process must know about a running one.

    Attributes:
        job: Its job's name, that of rank 0, without what groups of ranks add to it.
        parameters: Names of its module's parameters by their ``id``.
    """

    job: str
    parameters: dict[int, str]


_running: list[RunningAgent] = []
"""Agents that run, in the order of their start."""
_ended: set[str] = set()
"""Names of jobs that ended while others ran: a further agent adds nothing to their journals."""
_made: Counter[tuple[int, ...]] = Counter()
"""Agents made so far in this process, by the ranks of their module's process group."""


def next_number(members: list[int]) -> int:
    """Number an agent among those made for these ranks, from 1: the ranks start their agents in the same order."""
    _made[tuple(members)] += 1
    return _made[tuple(members)]


def enter(module: DataParallel, settings: AgentSettings, named: bool) -> RunningAgent:
    """Add an agent to those that run.

    Args:
        module: Its module.
        settings: Its settings.
        named: Whether the job's name was given to this agent, and not found in the environment.

    Raises:
        SetupError: It would share a parameter or the name of its job with one that runs.
    """
    parameters = {id(parameter): name for name, parameter in named_parameters(module)}
    for other in _running:
        shared = next((name for key, name in parameters.items() if key in other.parameters), None)
        if shared is not None:
            raise SetupError(
                f"the parameters of this module ({shared!r} among them) have an Agent that runs (job {other.job!r}): "
                "close that one first, or put shared layers into one DistributedDataParallel module"
            )
    agent = RunningAgent(_job(settings.job, named), parameters)
    _running.append(agent)
    return agent


def leave(agent: RunningAgent) -> None:
    """Take an agent off those that run. Its job's name stays taken until none runs."""
    _running.remove(agent)
    if _running:
        _ended.add(agent.job)
    else:
        _ended.clear()


def parameters_of_others(agent: RunningAgent) -> set[int]:
    """Return the ``id`` of each parameter that belongs to another running agent."""
    return {key for other in _running if other is not agent for key in other.parameters}


def _job(given: str | None, named: bool) -> str:
    """Return the job's name: an agent without one of its own takes that of the first agent that runs, with a number."""
    taken = {other.job for other in _running}
    if named and given is not None:
        if given in taken:
            raise SetupError(
                f"job={given!r} has an open Agent in this process already: give this one another job name"
            )
        return given
    name = given or (_running[0].job if _running else job_name())
    return next(one for one in numbered(name) if one not in taken | _ended)
