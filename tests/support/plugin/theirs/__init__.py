"""Members of a distribution that is not gravac's."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gravac.compressors.base import Key, kept_count
from gravac.compressors.sparse.selector import PLAIN, Indexed
from gravac.memories import ResidualMemory
from gravac.policies import ConfiguredPolicy, PolicySettings, PolicyState, Verdict
from gravac.policies.windows import next_decision
from gravac.protocol import Decision, WindowReport


class Theirs(Indexed):
    """Send every step-th element, from the first on, k in all."""

    name = "theirs"
    source = "a test"
    traits = replace(PLAIN, nested=False)

    def __init__(self, *, step: int = 1) -> None:
        self.step = step

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        k = kept_count(x.numel(), cf)
        return torch.arange(k, device=x.device) * min(self.step, x.numel() // k)


class Unbuildable(Theirs):
    """Needs a setting, so the catalogue cannot build it."""

    name = "unbuildable"

    def __init__(self, *, needed: int) -> None:
        super().__init__(step=needed)


class TheirMemory(ResidualMemory):
    """Error feedback under another name."""

    name = "theirs"


class TheirSettings(PolicySettings):
    """Nothing to set."""


class TheirPolicy(ConfiguredPolicy[TheirSettings]):
    """Hold CF 4, by a rule of its own."""

    name: ClassVar[str] = "theirs"
    source: ClassVar[str] = "a test"
    State: ClassVar[type[PolicyState]] = PolicyState
    Settings: ClassVar[type[PolicySettings]] = TheirSettings

    def start(self, epoch: int = 0) -> Verdict:
        decision = Decision(
            window=-1,
            epoch=epoch,
            phase="hold",
            cf_minimum=4.0,
            cf_candidate=4.0,
            epsilon=0.0,
            rule="our_rule",
            reason="Four is our number.",
        )
        return Verdict(decision, PolicyState(decision=decision))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        decision = next_decision(state.decision, report, "our_rule", "Four is still our number.")
        return Verdict(decision, PolicyState(decision=decision))
