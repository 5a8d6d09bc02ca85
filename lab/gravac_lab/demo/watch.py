"""Shows a running training: the address of its page, then a progress bar, or plain lines without a terminal."""

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gravac.traces import TraceError
from gravac.wording import printable
from gravac_controller.cli.wording import factor, plan, seconds
from gravac_lab.demo.figures import collect
from gravac_lab.demo.training import DemoPlan


@dataclass
class TrainingOutcome:
    """What rank 0 reported of one training."""

    heldout_loss: float | None = None
    heldout_accuracy: float | None = None
    url: str | None = None
    trace: Path | None = None
    step_seconds: list[float] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)

    @property
    def steps_per_second(self) -> float | None:
        """Over all steps."""
        total = sum(self.step_seconds)
        return len(self.step_seconds) / total if total else None


class Watcher:
    """Shows the events of a training and collects them in ``outcome``."""

    def __init__(self, console: Console, plan: DemoPlan, headline: str) -> None:
        self.outcome = TrainingOutcome()
        self._console, self._plan, self._headline = console, plan, headline
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._row: TaskID | None = None
        self._shown: tuple[float, str] | None = None
        self._reason = self._sent = ""

    def __enter__(self) -> Self:
        self._say(self._headline)
        self._bar.start()
        self._row = self._bar.add_task("starting", total=self._plan.steps, facts="first step in about 20 s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def handle(self, event: dict[str, Any]) -> None:
        """Show one event of ``gravac_lab.demo.train.Progress``."""
        match event["event"]:
            case "page":
                self._page(event["url"], event["trace"])
            case "step":
                self._step(event["step"], event["loss"], event["cf"], event["phase"], event["seconds"])
            case "link":
                self._say(f"step {event['step']:>4}  The emulated link carries {event['rate']} from here on.")
            case "done":
                self.outcome.heldout_loss = event["heldout_loss"]
                self.outcome.heldout_accuracy = event["heldout_accuracy"]

    def _page(self, url: str | None, trace: str | None) -> None:
        self.outcome.url = url
        self.outcome.trace = None if trace is None else Path(trace)
        if url is None:
            log = self._plan.data_dir / "controller.log"
            self._say(
                f"Live page  none: the controller did not start (see {log}); training continues without it"
            )
        else:
            self._say(f"Live page  {url}")

    def _step(self, step: int, loss: float, cf: float, phase: str, took: float) -> None:
        self.outcome.step_seconds.append(took)
        self.outcome.phases.append(phase)
        if self._shown != (cf, phase) and self.outcome.trace is not None:
            self._shown = (cf, phase)
            self._explain(step, self.outcome.trace)
        facts = f"loss {loss:.3f}  {self._sent or factor(cf)}  {phase}  {seconds(took)}/step"
        if self._row is not None:
            doing = "held-out loss" if step == self._plan.steps else phase
            self._bar.update(self._row, completed=step, facts=facts, description=doing)
        if not self._console.is_terminal and step % self._plan.window == 0:
            self._say(f"step {step:>4}/{self._plan.steps}  {facts}")

    def _explain(self, step: int, trace: Path) -> None:
        """Show the newest reason in the journal, once."""
        try:
            found = collect(trace)
            decision = found.decisions[-1]
        except (TraceError, IndexError):
            return  # the summary reports a missing journal
        self._sent = plan(decision, found.job.compressor)
        if decision.reason != self._reason:
            self._reason = decision.reason
            self._say(f"step {step - 1:>4}  {printable(decision.reason)}")

    def _say(self, text: str) -> None:
        lines = not self._console.is_terminal  # a line stays a line, for whatever reads it
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=lines)
