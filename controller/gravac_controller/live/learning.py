"""What the windows of a job show of its training: the loss, the risk of compression, the noise of the gradient."""

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.signals import figures
from gravac.signals.efficiency import Efficiency
from gravac.signals.loss_slope import LossBins, LossSlope
from gravac.signals.risk import RiskLight, RiskState, accepted_loss
from gravac_controller.views.models import LastKnown, WindowView


class Learning:
    """How well a job learns.

    Attributes:
        losses: Loss of the training so far.
        light: Risk light of the compression.
        gradient_diversity: Gradient diversity, as last measured.
        batch_bound_samples: Bound on the batch that follows from it.
    """

    def __init__(self) -> None:
        self.losses, self.light = LossSlope(), RiskLight()
        self.gradient_diversity: LastKnown | None = None
        self.batch_bound_samples: LastKnown | None = None

    def restore(
        self,
        losses: LossBins,
        risk: RiskState | None,
        gradient_diversity: LastKnown | None,
        batch_bound_samples: LastKnown | None,
    ) -> None:
        """Continue from what the parts of a journal before this one showed."""
        self.losses, self.light = LossSlope(losses), RiskLight(risk)
        self.gradient_diversity, self.batch_bound_samples = gradient_diversity, batch_bound_samples

    def forget(self) -> None:
        """Forget what a start that is not comparable showed. The risk light stays."""
        self.losses = LossSlope()
        self.gradient_diversity = self.batch_bound_samples = None

    def add(self, view: WindowView) -> None:
        """Add a window."""
        report = view.report
        if figures.mostly_dense(report):
            if view.gradient_diversity is not None:
                self.gradient_diversity = LastKnown(value=view.gradient_diversity, window=report.window)
            if view.batch_bound_samples is not None:
                self.batch_bound_samples = LastKnown(value=view.batch_bound_samples, window=report.window)
        if report.loss is not None:
            self.losses.add(report.last_step, figures.steps(report), report.loss)

    def judge(
        self, report: WindowReport, spec: JobSpec, before: Decision, decision: Decision
    ) -> Efficiency | None:
        """Judge a window, by the efficiency of its plan that the policy believes after it, if it has one.

        Args:
            report: The window.
            spec: The job.
            before: The decision that it ran under.
            decision: The decision on it.

        Returns:
            That efficiency.
        """
        found = figures.believed(decision, before)
        self.light.add(
            report,
            before.epsilon,
            spec.optimizer_kind,
            spec.compressor,
            accepted_loss(spec.policy),
            self.losses.slope(),
            spec.world_size,
            believed=found,
        )
        return found
