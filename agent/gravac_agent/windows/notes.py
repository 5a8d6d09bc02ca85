"""What a rank says to people: in its log and, on rank 0, in the job's journal."""

import logging
import threading

import torch.distributed as dist

from gravac.protocol import Event
from gravac_agent.exchange.agreement import missing_ranks
from gravac_agent.reporting.reporter import Reporter

log = logging.getLogger("gravac.agent")


class Notes:
    """Brings sentences to the log and the journal.

    Args:
        reporter: Rank 0's; None on the other ranks, which have the log alone.
        group: Group of the ticks.

    Attributes:
        window: Number of the running window, which goes with each sentence.
    """

    def __init__(self, reporter: Reporter | None, group: dist.ProcessGroup) -> None:
        self._reporter, self._group = reporter, group
        self._losing, self._lost = threading.Lock(), dict[int, str]()
        self.window = 0

    def add(self, kind: str, message: str, level: int = logging.WARNING) -> None:
        """Put a sentence into log and journal.

        Args:
            kind: Kind of the event.
            message: The sentence.
            level: Level of the log.
        """
        log.log(level, message)
        if self._reporter is not None:
            event = Event.model_validate({"kind": kind, "window": self.window, "message": message})
            self._reporter.report_event(event)

    def inform(self, sentence: str) -> None:
        """Put a sentence that is no warning into log and journal. Call it between steps."""
        self.add("note", sentence, logging.INFO)

    def inform_once(self, sentence: str) -> None:
        """Inform on rank 0 only, since all ranks would say the same."""
        if self._reporter is not None:
            self.inform(sentence)

    def lose(self, step: int, why: str) -> str:
        """Note, once for a step, why it is lost and which ranks are missing. Any thread may call it.

        Args:
            step: Number of the step.
            why: What ended it.

        Returns:
            What was noted.
        """
        with self._losing:
            if step not in self._lost:
                missing = missing_ranks(self._group, step)
                self._lost[step] = f"Step {step}: {why}" + (f". {missing}" if missing else "")
                self.add("failed", self._lost[step])
            return self._lost[step]
