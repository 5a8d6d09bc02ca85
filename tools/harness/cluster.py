"""A simulated cluster that gives valid window reports, so that whole runs of a policy can be played in a test."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gravac.policies import POLICIES, Policy, PolicyState
from gravac.protocol import (
    Decision,
    Environment,
    GainSums,
    JobSpec,
    LevelSums,
    ModelShape,
    PhaseSeconds,
    PolicySpec,
    RankRow,
    SmoothedGain,
    WindowReport,
)

GAINS = {10.0: 0.60, 20.0: 0.45, 40.0: 0.33, 160.0: 0.20, 1000.0: 0.08}
"""Gain by CF, of the shape a small network shows under Top-k with error feedback."""


def policy_lines() -> list[str]:
    """Every registered policy as ``parse`` reads it: with its defaults if it has them all, and with each example."""
    lines = []
    for name, policy in sorted(POLICIES.items()):
        needed = any(field.is_required() for field in policy.Settings.model_fields.values())
        lines += [] if needed and policy.examples else [name]
        lines += [f"{name}:{example}" for example in policy.examples]
    return lines


@dataclass(frozen=True)
class Cluster:
    """Time and gain as simple functions: a step = compute + network / CF (+ compressing, unless dense)."""

    compute_seconds: float = 0.1
    network_seconds: float = 1.0  # of a dense step, all of it exposed
    compress_seconds: float = 0.02
    samples_per_step: int = 64
    window_steps: int = 50
    settle_steps: int = 5
    gains: dict[float, float] = field(default_factory=lambda: dict(GAINS))

    def gain(self, cf: float) -> float:
        return 1.0 if cf == 1.0 else self.gains.get(cf, 1.0 / cf)

    def step_seconds(self, cf: float) -> float:
        return self.compute_seconds + self.network_seconds / cf + (self.compress_seconds if cf > 1 else 0.0)

    def sent(self, decision: Decision) -> float:
        """The gate of each step."""
        for cf in (decision.cf_candidate, decision.cf_minimum):
            if self.gain(cf) >= decision.epsilon:
                return cf
        return 1.0

    def t_comp(self, cf: float) -> float:
        return self.samples_per_step / self.step_seconds(cf) * self.gain(cf)

    def report(self, window: int, decision: Decision, **changes: object) -> WindowReport:
        """What the ranks would report of a window they ran under ``decision`` from its first step on."""
        cf, steps = self.sent(decision), self.window_steps
        level = level_sums(
            decision.epoch,
            cf,
            steps,
            max(0, steps - self.settle_steps),
            self.step_seconds(cf),
            self.network_seconds / cf,
            decision.codec,
        )
        measured = sorted({decision.cf_minimum, decision.cf_candidate} - {1.0})
        given: dict[str, object] = {
            "window": window,
            "first_step": window * steps,
            "last_step": (window + 1) * steps - 1,
            "epoch": decision.epoch,
            "phase": decision.phase,
            "cf": cf,
            "seconds": steps * self.step_seconds(cf),
            "samples": steps * self.samples_per_step,
            "levels": (level,) if level.settled_steps else (),
            "gains": tuple(
                SmoothedGain(cf=value, gain=self.gain(value), codec=decision.codec) for value in measured
            ),
        }
        return window_report(**(given | changes))


def level_sums(
    epoch: int,
    cf: float,
    steps: int,
    settled: int,
    seconds: float | None,
    exposed: float | None,
    codec: str | None = None,
) -> LevelSums:
    return LevelSums(
        epoch=epoch,
        cf=cf,
        codec=codec,
        steps=steps,
        settled_steps=settled,
        step_seconds_median=seconds,
        exposed_seconds_median=exposed,
        dense_bytes=4000 * steps,
        payload_bytes=int(4000 * steps / cf),
        sums=GainSums(
            steps=steps,
            gradient_sq=2.5 * steps,
            compensated_sq=3.5 * steps,
            sent_sq=3.0 * steps,
            minimum_sq=3.0 * steps,
            candidate_sq=2.0 * steps,
            residual_sq=1.5 * steps,
            residual_dot_gradient=-0.25 * steps,
        ),
    )


def window_report(**changes: object) -> WindowReport:
    phases = PhaseSeconds(data_wait=0.25, compute=4.5, compress=1.0, communicate=2.125, decompress=0.5)
    given: dict[str, object] = {
        "job": "job",
        "incarnation": "first",
        "window": 0,
        "first_step": 0,
        "last_step": 49,
        "epoch": 0,
        "phase": "warmup",
        "cf": 1.0,
        "seconds": 50.0,
        "samples": 3200,
        "dense_bytes": 400_000,
        "payload_bytes": 40_000,
        "loss": 2.25,
        "nonfinite_steps": 0,
        "failed_steps": 0,
        "levels": (),
        "gains": (),
        "phases": phases,
        "ranks": (
            RankRow(
                rank=0,
                steps=50,
                step_seconds=55.5,
                phases=phases,
                samples=1600,
                nonfinite_steps=0,
                failed_steps=0,
                memory_bytes=4096,
            ),
        ),
    }
    return WindowReport(**(given | changes))  # type: ignore[arg-type]


def job_spec(policy: PolicySpec, **changes: object) -> JobSpec:
    given: dict[str, object] = {
        "job": "job",
        "incarnation": "first",
        "world_size": 2,
        "window_steps": 50,
        "policy": policy,
        "compressor": "topk",
        "memory": "residual",
        "model": ModelShape(name="Net", tensors=4, elements=1000),
        "environment": Environment(
            python="3.11.2", torch="2.9", gravac="0.1.0", platform="Linux", backend="gloo", device="cpu"
        ),
    }
    return JobSpec(**(given | changes))  # type: ignore[arg-type]


@dataclass
class Run:
    """A policy on a cluster, window by window. ``decisions[0]`` is the one it starts with."""

    policy: Policy
    cluster: Cluster
    state: PolicyState = field(init=False)
    decisions: list[Decision] = field(init=False)
    reports: list[WindowReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        verdict = self.policy.start()
        self.state, self.decisions = verdict.state, [verdict.decision]

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    def windows(self, count: int = 1, **changes: object) -> Decision:
        for _ in range(count):
            self.feed(self.cluster.report(len(self.decisions) - 1, self.last, **changes))
        return self.last

    def feed(self, report: WindowReport) -> Decision:
        verdict = self.policy.decide(self.state, report)
        assert verdict.state.decision == verdict.decision
        self.state = verdict.state
        self.decisions.append(verdict.decision)
        self.reports.append(report)
        return verdict.decision

    def until(self, stop: Callable[[Decision], bool], most: int = 40) -> Decision:
        for _ in range(most):
            if stop(self.windows()):
                return self.last
        raise AssertionError(f"not reached in {most} windows: {self.last}")

    def until_hold(self) -> Decision:
        return self.until(lambda decision: decision.phase == "hold")

    def change(self, **changes: object) -> None:
        self.cluster = replace(self.cluster, **changes)  # type: ignore[arg-type]

    @property
    def rules(self) -> list[str]:
        return [decision.rule for decision in self.decisions]
