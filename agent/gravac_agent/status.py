"""What a user can ask an agent."""

from dataclasses import dataclass

from gravac_agent.setup.build import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """What the agent does, as of the last finished step. ``cf`` 1 = dense; bytes are this rank's, since the start."""

    job: str
    rank: int
    step: int
    window: int
    epoch: int
    phase: str
    cf: float
    gain: float | None
    dense_bytes: int
    payload_bytes: int
    nonfinite_steps: int
    memory_bytes: int


def state_of(parts: Parts) -> AgentState:
    """A snapshot; cheap enough for every step."""
    loop, plan = parts.loop, parts.loop.plan
    return AgentState(
        job=parts.job,
        rank=parts.rank,
        step=loop.step,
        window=loop.window.number,
        epoch=plan.directive.epoch,
        phase=plan.directive.phase,
        cf=plan.cf,
        gain=loop.tracker.gain(plan.cf),
        dense_bytes=loop.dense_bytes,
        payload_bytes=loop.payload_bytes,
        nonfinite_steps=loop.nonfinite_steps,
        memory_bytes=parts.memory.nbytes(),
    )
