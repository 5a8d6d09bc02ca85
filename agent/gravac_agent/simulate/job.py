"""A simulated job: real learning of several ranks in one process, step times of a clock, decisions of the real policy.

Its journal is a trace as any other: it replays, and ``gravac report`` draws it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gravac import policies
from gravac.protocol import End, Environment, JobSpec, ModelShape
from gravac.signals.gain import GainTracker
from gravac.version import __version__
from gravac_agent.exchange.compensation import is_surveyed
from gravac_agent.exchange.plan import Plan, first_plan, next_plan
from gravac_agent.reporting.reporter import LocalReporter
from gravac_agent.setup.describe import optimizer_spec
from gravac_agent.simulate.clock import Clock
from gravac_agent.simulate.learning import Learner
from gravac_agent.simulate.ranks import SimulatedRanks
from gravac_agent.tasks import make
from gravac_agent.windows.report import build_report
from gravac_agent.windows.totals import RankTotals, WindowTotals

SETTLE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What to simulate.

    Attributes:
        task: As ``tasks.make`` reads it.
        policy: As ``gravac.policies.parse`` reads it.
        ranks: Simulated ranks.
        seed: Of weights, data and codecs.
        steps: Length of the job.
        clock: Gives step times.
        compressor: The job's compressor.
        memory: Error memory.
        window: Steps between decisions.
        points: How often the held-out loss is measured.
        name: Name of the job.
    """

    task: str
    policy: str
    ranks: int
    seed: int
    steps: int
    clock: Clock
    compressor: str = "topk+bf16"
    memory: str = "residual"
    window: int = 50
    points: int = 40
    name: str = "simulated"


@dataclass(slots=True)
class SimulatedJob:
    """One job; ``run`` does all of it.

    Args:
        setting: What to simulate.
        data_dir: Folder of its journal.
    """

    setting: Setting
    data_dir: Path
    seconds: float = field(default=0.0, init=False)
    """Simulated time so far."""

    def run(self) -> dict[str, Any]:
        """Train, decide and journal.

        Returns:
            Plain numbers: ``curve`` (step, simulated seconds, held-out loss, accuracy), ``plans`` (first step, codec, CF),
            ``payload_bytes`` a step, and ``trace``, the path of the journal.
        """
        setting = self.setting
        recipe = make(setting.task)
        model = recipe.build_model(setting.seed)
        shape = ModelShape(
            name=type(model).__name__,
            tensors=sum(one.requires_grad for one in model.parameters()),
            elements=sum(one.numel() for one in model.parameters() if one.requires_grad),
        )
        spec = JobSpec(
            job=setting.name,
            incarnation="simulated",
            world_size=setting.ranks,
            window_steps=setting.window,
            policy=policies.parse(setting.policy).spec(),
            compressor=setting.compressor,
            memory=setting.memory,
            model=shape,
            environment=Environment(
                python="",
                torch="",
                gravac=__version__,
                platform="simulation",
                backend="simulated",
                device="cpu",
            ),
            optimizer=optimizer_spec(recipe.optimizer(model.parameters())),
        )
        policy = policies.parse(setting.policy).fitted(spec)
        ranks = SimulatedRanks(
            setting.ranks,
            setting.compressor,
            setting.memory,
            elements=shape.elements,
            seed=setting.seed,
            others=policy.codecs(),
        )
        learner = Learner(recipe, setting.ranks, setting.seed, setting.steps, ranks)
        reporter = LocalReporter(spec, self.data_dir)
        loop = _Loop(
            self, learner, reporter, GainTracker(policy.smoothing(setting.ranks), policy.gain_denominator())
        )
        loop.run()
        end = End(
            incarnation="simulated",
            windows=loop.window.number,
            steps=setting.steps,
            message="The simulation is over.",
        )
        reporter.close(end)
        return {
            "task": setting.task,
            "policy": setting.policy,
            "ranks": setting.ranks,
            "seed": setting.seed,
            "steps": setting.steps,
            "elements": shape.elements,
            "optimizer": recipe.optimizer_kind,
            "payload_bytes": loop.payload / setting.steps,
            "curve": loop.curve,
            "plans": loop.plans,
            "trace": str(reporter.trace_path),
        }


class _Loop:
    """The steps of a job: what ``StepLoop`` does on every rank, for all of them together."""

    def __init__(
        self, job: SimulatedJob, learner: Learner, reporter: LocalReporter, tracker: GainTracker
    ) -> None:
        self._job, self._learner, self._reporter, self._tracker = job, learner, reporter, tracker
        self._measure_first = learner.ranks.encoders[0].learning_codecs()
        self._plan = self._following = first_plan(reporter.directive, tracker)
        self._at_level = 0
        self.window = WindowTotals(0, 0)
        self.curve: list[list[float]] = []
        self.plans: list[list[Any]] = []
        self.payload = 0

    def run(self) -> None:
        setting = self._job.setting
        every = max(1, setting.steps // setting.points)
        for step in range(setting.steps):
            self._step(step)
            if (step + 1) % every == 0 or step + 1 == setting.steps:
                score = self._learner.evaluate()
                self.curve.append(
                    [step + 1, round(self._job.seconds, 6), round(score.loss, 5), round(score.accuracy, 5)]
                )
        if self.window.own.steps:
            self._close(setting.steps)

    def _step(self, step: int) -> None:
        setting, plan = self._job.setting, self._plan
        ordered = plan.directive.window_steps or setting.window
        if step - self.window.first_step >= ordered:
            self._close(step)
        codec = self._learner.ranks.encoders[0].codecs[plan.codec]
        if not self.plans or self.plans[-1][1:] != [codec if plan.cf > 1 else "dense", plan.cf]:
            self.plans.append([step, codec if plan.cf > 1 else "dense", plan.cf])
        done = self._learner.train(plan, surveyed=is_surveyed(step - self.window.first_step, ordered))
        sums, sent = done.exchanged.sums, done.exchanged
        if not sums.nonfinite:
            whole = sums.gradient_sq if self._tracker.denominator == "gradient" else sums.compensated_sq
            for cf, kept in zip(plan.measured, (sums.minimum_sq, sums.candidate_sq), strict=False):
                self._tracker.update(cf, kept, whole, plan.codec)
        times = setting.clock.times(step, codec, plan.cf, sent.payload_bytes)
        self._job.seconds += times.seconds
        self.payload += sent.payload_bytes
        self._at_level += 1
        self.window.add(
            plan, sums, times, sent.dense_bytes, sent.payload_bytes, self._at_level > SETTLE_STEPS
        )
        self.window.add_mean(plan, sums, sent.mean_sq)
        self.window.add_curve(sent.survey.curve)
        self.window.add_loss(done.loss)
        self._advance()

    def _advance(self) -> None:
        before, self._plan = self._plan, self._following
        if _sending(before) != _sending(self._plan):
            self._at_level = 0
            self.window.add_progress(before, self._learner.reference.change_plan())
        self._following = next_plan(self._reporter.directive, self._tracker, self._measure_first)
        self._tracker.forget_except(self._plan.gains | self._following.gains)

    def _close(self, step: int) -> None:
        setting, window = self._job.setting, self.window
        self.window = WindowTotals(window.number + 1, step)
        window.own.samples = window.own.steps * self._learner.recipe.global_batch / setting.ranks
        others = [
            RankTotals(**{name: getattr(window.own, name) for name in RankTotals.__slots__})
            for _ in range(1, setting.ranks)
        ]
        assert window.last_plan is not None
        window.add_progress(window.last_plan, self._learner.reference.pop())
        own = self._learner.ranks.encoders[0].aggregator_of(window.last_plan).keeps_largest
        curve = None
        if window.curve is not None:
            curve = window.curve_over_ranks([window.vector()], own=own)
        report = build_report(
            window,
            [window.own, *others],
            dict(self._tracker.gains(window.last_plan.codec)),
            curve,
            setting.name,
            "simulated",
            setting.ranks,
        )
        self._reporter.report_window(report)


def _sending(plan: Plan) -> tuple[int, int, float]:
    return plan.directive.epoch, plan.codec, plan.cf
