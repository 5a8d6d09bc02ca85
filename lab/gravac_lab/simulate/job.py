"""A simulated job: real learning of several ranks in one process, step times of a clock, decisions of the real policy.

Its journal is a trace as any other: it replays, and ``gravac report`` draws it.
"""

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gravac import aggregators, memories, policies
from gravac.collectives import ALONE, AUTO
from gravac.policies.base import Policy
from gravac.protocol import Decision, End, Environment, JobSpec, ModelShape, NetworkSpec
from gravac.signals.gain import GainTracker
from gravac.traces import read_trace
from gravac.version import __version__
from gravac_agent.errors import SetupError
from gravac_agent.exchange.compensation import is_surveyed
from gravac_agent.exchange.plan import StepPlan, next_plan
from gravac_agent.reporting.reporter import LocalReporter
from gravac_agent.setup.agree import checked_codecs
from gravac_agent.setup.describe import optimizer_spec
from gravac_agent.setup.plan_costs import codec_sizes, plan_costs, reached_plans
from gravac_agent.windows.meters import WindowTotals
from gravac_agent.windows.report import build_report
from gravac_lab.simulate.clock import Clock
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.ranks import SimulatedRanks
from gravac_lab.tasks import Recipe, elements_of

SETTLE_STEPS = 3
"""Steps after a change of what is sent whose time does not count, as by the agent's default."""
INCARNATION = "simulated"
POINTS_A_LINE = 4
"""Points of the curve for each line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """What to simulate.

    Attributes:
        recipe: What is trained.
        policy: Policy as ``gravac.policies.parse`` reads it.
        ranks: Simulated ranks.
        seed: Seed of weights, data and codecs.
        steps: Length of the job.
        clock: Gives step times.
        compressor: The job's compressor.
        memory: Error memory.
        collective: How payloads meet: a name, or auto.
        window: Steps between decisions, where a decision orders no other number.
        points: How often the held-out loss is measured, evenly spread; the last step always is.
        name: Name of the job.
    """

    recipe: Recipe
    policy: str
    ranks: int
    seed: int
    steps: int
    clock: Clock
    compressor: str = "topk+bf16"
    memory: str = "residual"
    collective: str = AUTO
    window: int = 50
    points: int = 40
    name: str = "simulated"


@dataclass(slots=True)
class SimulatedJob:
    """One job; ``run`` does all of it, ``train`` step by step.

    Args:
        setting: What to simulate.
        data_dir: Folder of its journal.

    Raises:
        SetupError: A policy, compressor or memory does not exist or cannot be used, or the job has a journal already.
    """

    setting: SimulationSettings
    data_dir: Path
    seconds: float = field(default=0.0, init=False)
    """Simulated time so far."""
    result: dict[str, Any] = field(default_factory=dict, init=False)
    """What ``run`` returns, at the end."""
    learner: Learner = field(init=False)
    aged: bool = field(init=False)
    """Whether the optimizer ages, as ``JobSpec.aged``."""
    _spec: JobSpec = field(init=False)
    _policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        setting, recipe = self.setting, self.setting.recipe
        if (self.data_dir / setting.name).exists():
            raise SetupError(
                f"{self.data_dir / setting.name} exists: a simulation continues no job, so choose another name"
            )
        try:
            policy = policies.parse(setting.policy)
            policy.check_window(setting.window)
            aggregators.parse(setting.compressor, setting.collective)
            memories.build(setting.memory)
        except ValueError as error:
            raise SetupError(str(error)) from None
        model = recipe.build_model(setting.seed)
        elements, network = elements_of(model), setting.clock.network(0)
        shapes = {name: tuple(one.shape) for name, one in model.named_parameters() if one.requires_grad}
        spec = JobSpec(
            job=setting.name,
            incarnation=INCARNATION,
            world_size=setting.ranks,
            window_steps=setting.window,
            policy=policy.spec(),
            compressor=setting.compressor,
            memory=setting.memory,
            model=ModelShape(
                name=type(model).__name__,
                tensors=sum(param.requires_grad for param in model.parameters()),
                elements=elements,
            ),
            environment=Environment(
                python=platform.python_version(),
                torch=torch.__version__,
                gravac=__version__,
                platform=platform.platform(),
                backend="simulated",
                device="cpu",
            ),
            optimizer=optimizer_spec(recipe.optimizer(model.parameters())),
            network=NetworkSpec(**asdict(network)),
        )
        policy = policy.fitted(spec)
        built = {
            codec: aggregators.build(codec or setting.compressor, ALONE)
            for codec in (None, *checked_codecs(policy, setting.collective))
        }
        spec = spec.model_copy(update={"sizes": codec_sizes(built, shapes)})
        costs = plan_costs(
            reached_plans(policy.plans(setting.compressor), spec),
            setting.compressor,
            elements,
            setting.ranks,
            network,
            setting.collective,
            kind=spec.optimizer_kind,
            remembers=spec.memory.partition(":")[0] != "none",
            aged=spec.aged,
        )
        self._spec, self.aged = spec.model_copy(update={"plans": costs}), spec.aged
        self._policy = policy.fitted(self._spec)
        ranks = SimulatedRanks(
            setting.ranks,
            setting.compressor,
            setting.memory,
            collective=setting.collective,
            network=network,
            elements=elements,
            aged=spec.aged,
            seed=setting.seed,
            others=checked_codecs(self._policy, setting.collective),
        )
        self.learner = Learner(recipe, setting.ranks, setting.seed, setting.steps, ranks)

    def run(self) -> dict[str, Any]:
        """Train, decide and journal.

        Returns:
            Plain numbers: ``curve`` (step, simulated seconds, held-out loss, accuracy), ``plans`` (first step, codec,
            CF, and the reason of the decision), ``payload_bytes`` and ``seconds`` of a step, and ``trace``, the path of
            the journal.
        """
        for _ in self.train():
            pass
        return self.result

    def train(self) -> Iterator[str]:
        """Do the same, and yield lines of progress."""
        setting = self.setting
        reporter = LocalReporter(self._spec, self.data_dir)
        tracker = GainTracker(self._policy.smoothing(setting.ranks), self._policy.gain_denominator())
        loop = _Loop(self, reporter, tracker)
        yield from loop.run()
        trace = reporter.trace_path
        reporter.close(
            End(
                incarnation=INCARNATION,
                windows=loop.window.number,
                steps=setting.steps,
                message="The simulation is over.",
            )
        )
        reasons = {} if trace is None else _reasons(trace)
        self.result = {
            "task": setting.recipe.name,
            "policy": setting.policy,
            "ranks": setting.ranks,
            "seed": setting.seed,
            "steps": setting.steps,
            "elements": self._spec.model.elements,
            "optimizer": setting.recipe.optimizer_kind,
            "payload_bytes": loop.payload / setting.steps,
            "seconds": self.seconds / setting.steps,
            "curve": loop.curve,
            "plans": [[*plan, reasons.get(epoch, "")] for *plan, epoch in loop.plans],
            "trace": None if trace is None else str(trace),
        }


class _Loop:
    """The steps of a job: what ``StepLoop`` does on every rank, for all of them together."""

    def __init__(self, job: SimulatedJob, reporter: LocalReporter, tracker: GainTracker) -> None:
        self._job, self._learner, self._reporter, self._tracker = job, job.learner, reporter, tracker
        self._channels = job.learner.ranks.channels[0]
        self._measure_first = self._channels.learning_codecs()
        self._plan = self._following = next_plan(reporter.directive, tracker, self._measure_first)
        self._at_level = 0
        self.window = WindowTotals(0, 0)
        self.curve: list[list[float]] = []
        self.plans: list[list[Any]] = []
        """First step, codec, CF, and epoch of the decision that ordered them."""
        self.payload = 0

    def run(self) -> Iterator[str]:
        setting = self._job.setting
        every = max(1, setting.steps // setting.points)
        for step in range(setting.steps):
            self._step(step)
            if (step + 1) % every == 0 or step + 1 == setting.steps:
                score = self._learner.evaluate()
                self.curve.append(
                    [step + 1, round(self._job.seconds, 6), round(score.loss, 5), round(score.accuracy, 5)]
                )
                if len(self.curve) % POINTS_A_LINE == 0 or step + 1 == setting.steps:
                    yield (
                        f"step {step + 1} of {setting.steps}, {self._job.seconds:.1f} simulated seconds: held-out loss "
                        f"{score.loss:.4f}"
                    )
        if self.window.own.steps:
            self._close(setting.steps)

    def _step(self, step: int) -> None:
        setting, plan = self._job.setting, self._plan
        ordered = plan.directive.window_steps or setting.window
        if step - self.window.first_step >= ordered:
            self._close(step)
        codec = self._channels.codecs[plan.codec]
        sending = [codec if plan.cf > 1.0 else "dense", plan.cf]
        if not self.plans or self.plans[-1][1:3] != sending:
            self.plans.append([step, *sending, plan.directive.epoch])
        done = self._learner.train(plan, surveyed=is_surveyed(step - self.window.first_step, ordered))
        sums, sent = done.exchanged.sums, done.exchanged
        times = setting.clock.times(
            step, codec, plan.cf, sent.payload_bytes, setting.collective, self._job.aged
        )
        self._job.seconds += times.seconds
        self.payload += sent.payload_bytes
        self._at_level += 1
        self.window.add(
            plan, sums, times, sent.dense_bytes, sent.payload_bytes, self._at_level > SETTLE_STEPS
        )
        self.window.add_mean(plan, sums, sent.mean_sq)
        self.window.add_loss(done.loss)
        if not sums.nonfinite:
            whole = sums.gradient_sq if self._tracker.denominator == "gradient" else sums.compensated_sq
            for cf, kept in zip(plan.measured, (sums.minimum_sq, sums.candidate_sq), strict=False):
                self._tracker.update(cf, kept, whole, plan.codec)
            self.window.add_curve(sent.curve)
        self._advance()

    def _advance(self) -> None:
        before, self._plan = self._plan, self._following
        if _sending(before) != _sending(self._plan):
            self._at_level = 0
            assert self._learner.reference is not None
            self.window.add_progress(before, self._learner.reference.change_plan())
        self._following = next_plan(self._reporter.directive, self._tracker, self._measure_first)
        self._tracker.forget_except(self._plan.gains | self._following.gains)

    def _close(self, step: int) -> None:
        """Report the window that ends before a step. All ranks report the same times, samples and losses."""
        setting, window = self._job.setting, self.window
        self.window = WindowTotals(window.number + 1, step)
        window.own.samples = window.own.steps * self._learner.recipe.global_batch / setting.ranks
        window.own.memory_bytes = self._channels.memory.nbytes()
        assert window.last_plan is not None
        assert self._learner.reference is not None
        window.add_progress(window.last_plan, self._learner.reference.pop())
        curve = window.curve_over_ranks(
            [window.vector()], own=self._channels.aggregators[window.last_plan.codec].keeps_largest
        )
        report = build_report(
            window,
            [window.own, *(replace(window.own) for _ in range(1, setting.ranks))],
            dict(self._tracker.gains(window.last_plan.codec)),
            curve,
            setting.name,
            INCARNATION,
            codecs=(None, *self._channels.codecs[1:]),
        )
        self._reporter.report_window(report)


def _sending(plan: StepPlan) -> tuple[int, int, float]:
    return plan.directive.epoch, plan.codec, plan.cf


def _reasons(trace: Path) -> dict[int, str]:
    """Return why each decision of a journal was made, by the epoch that it began."""
    reasons: dict[int, str] = {}
    for line in read_trace(trace):
        if isinstance(line.record, Decision):
            reasons.setdefault(line.record.epoch, line.record.reason)
    return reasons
