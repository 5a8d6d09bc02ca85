"""A policy that follows a list of plans, one for each window; not registered, so it decides in process."""

from typing import ClassVar, NamedTuple

from gravac.policies.base import Policy, PolicyState, Verdict
from gravac.policies.windows import next_decision
from gravac.protocol import Count, Decision, JobSpec, PolicySpec, Trial, WindowReport


class Play(NamedTuple):
    """What one window sends. ``codec`` None: the job's compressor; ``window_steps`` None: the job's.

    ``trial``: the fields of its ``Trial``, in order; None: it is none.
    """

    codec: str | None
    cf: float
    window_steps: int | None = None
    trial: tuple[float, float, str | None] | None = None

    def price(self) -> Trial | None:
        """Return what it may cost."""
        if self.trial is None:
            return None
        seconds, cf, codec = self.trial
        return Trial(step_seconds=seconds, cf=cf, codec=codec)


class ScriptedState(PolicyState):
    """``turn``: place of the plan in force."""

    turn: Count


class ScriptedPolicy(Policy):
    """Sends each plan of a list for one window. After the last one it stays at it, or with ``again`` starts over."""

    name: ClassVar[str] = "scripted"
    source: ClassVar[str] = "tests"
    State: ClassVar[type[PolicyState]] = ScriptedState

    def __init__(
        self, *plays: Play, epsilon: float = 0.0, again: bool = False, also: tuple[str, ...] = ()
    ) -> None:
        self.plays, self.epsilon, self.again, self.also = plays, epsilon, again, also
        self.job: JobSpec | None = None

    def spec(self) -> PolicySpec:
        plays = [list(play) for play in self.plays]
        return PolicySpec(
            name=self.name, settings={"plays": plays, "epsilon": self.epsilon, "again": self.again}
        )

    def codecs(self) -> tuple[str, ...]:
        named = dict.fromkeys(play.codec for play in self.plays if play.codec is not None)
        return (*named, *self.also)

    def fitted(self, spec: JobSpec) -> "ScriptedPolicy":
        policy = ScriptedPolicy(*self.plays, epsilon=self.epsilon, again=self.again, also=self.also)
        policy.job = spec
        return policy

    def start(self, epoch: int = 0) -> Verdict:
        play = self.plays[0]
        decision = Decision(
            window=-1,
            epoch=epoch,
            phase="hold",
            cf_minimum=play.cf,
            cf_candidate=play.cf,
            epsilon=self.epsilon,
            rule="start",
            reason="The script begins.",
            codec=play.codec,
            window_steps=play.window_steps,
            trial=play.price(),
        )
        return Verdict(decision, ScriptedState(decision=decision, turn=0))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        assert isinstance(state, ScriptedState)
        turn = state.turn + 1
        turn = turn % len(self.plays) if self.again else min(turn, len(self.plays) - 1)
        play = self.plays[turn]
        decision = next_decision(
            state.decision,
            report,
            "fixed",
            f"Number {turn} of the script.",
            minimum=play.cf,
            candidate=play.cf,
            codec=play.codec,
            window_steps=play.window_steps,
        ).model_copy(update={"trial": play.price()})
        return Verdict(decision, ScriptedState(decision=decision, turn=turn))
