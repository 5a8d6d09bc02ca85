"""``gravac observe``: records steps of any training, and says what they wait for, and what to do.

Here are the types of what crosses between the command and its recorder, as JSON. The recorder imports nothing else of
gravac, and these for a type checker only, which compares both sides. A reader of a trace checks every value, since
anybody may have written it.
"""

from typing import TypedDict

MOST_STEPS = 1000
"""Steps that are recorded at most."""


class RecordRequest(TypedDict):
    """What ``gravac observe`` asks of the processes of its command, in the variable ``GRAVAC_OBSERVE``."""

    folder: str  # where traces are kept
    steps: int  # how many are recorded
    warmup: int  # steps before


class OptimizerSaid(TypedDict):
    """One optimizer of the process."""

    classes: list[str]  # names of its class and of those that it derives from
    beta: float | None  # its β₁
    parameters: int  # elements that it steps


class Recorded(TypedDict, total=False):
    """What the recorder writes beside the events of a trace, under ``gravac``."""

    optimizer: str  # names of the optimizers' classes
    optimizers: list[OptimizerSaid]
    parameters: int  # elements of all gradients
    host: str  # name of the machine
    world: int  # ranks, which torch writes only of processes that communicate
    framework: str  # what exchanges gradients, where events do not show it: agent, deepspeed
    whole_steps: int  # recorded steps that are whole
    collections: list[list[float]]  # begin and end of each collection of garbage, in microseconds
    step_seconds: float  # median of steps without the profiler
    thread_seconds: float  # CPU time of the thread that trains in such a step
    recorded_thread_seconds: float  # the same in a recorded step
