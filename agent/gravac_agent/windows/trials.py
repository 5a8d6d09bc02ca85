"""The price of a trial: a step that takes too long ends it on all ranks at once (promise P12).

Step s is too long. Each rank knows that when s ends, and says it in the tick of s+1. After that tick all ranks make the
plan of s+3, which is the one to go back to. So s, s+1 and s+2 are slow.

A step is too long if it was on *every* rank, without what the trainer did there. Ranks wait for one another, so a slow
exchange is slow for all. Where one rank saves a checkpoint, the others wait for it, but that rank waits for none.
"""

from gravac_agent.exchange.plan import Directive, StepPlan


class Trials:
    """What is known of the price of the trial in force, equal on all ranks but for the seconds.

    Attributes:
        back: What the ranks went back to; None: no trial ended early, or another decision followed.
    """

    def __init__(self) -> None:
        self.back: Directive | None = None
        self.slow: tuple[Directive, int, float] | None = None
        """The newest step, if it was too long here: its directive, its number and its seconds."""
        self._longest: tuple[Directive, float] | None = None

    def judge(self, plan: StepPlan, step: int, seconds: float) -> bool:
        """Take in a step that sent what is on trial. Return whether it took longer than it may.

        Args:
            plan: Its plan.
            step: Its number.
            seconds: What the plan answers for of its time on this rank.
        """
        directive = plan.directive
        before = 0.0
        if self._longest is not None and self._longest[0] == directive:
            before = self._longest[1]
        self._longest = directive, max(before, seconds)
        self.slow = (directive, step, seconds) if seconds > directive.limit_seconds else None
        return self.slow is not None

    def ends(self, slow: Directive, decided: Directive) -> bool:
        """Return whether a trial ends, and note what to go back to.

        Args:
            slow: Directive of a step that was too long on all ranks.
            decided: Rank 0's directive by now. One of another epoch has ended the trial already, and one of the same
                epoch does not begin it again.
        """
        if decided.epoch != slow.epoch or self.back == slow.back():
            return False
        self.back = slow.back()
        return True

    def in_force(self, decided: Directive) -> Directive:
        """Return what the ranks follow: what they went back to, until a decision of another epoch arrives."""
        back = self.back
        if back is None or decided.phase == "fallback":
            return decided
        if decided.epoch != back.epoch:
            self.back = None
            return decided
        return back

    def ended_with(self, before: StepPlan, plan: StepPlan) -> float | None:
        """Return the longest step of the trial if ``plan`` is the first of what the ranks went back to.

        Args:
            before: Plan of the step before.
            plan: Plan of the step that begins.
        """
        last, now = before.directive, plan.directive
        if now != self.back or last == now or (last.epoch, last.phase) != (now.epoch, now.phase):
            return None
        return 0.0 if self._longest is None else self._longest[1]
