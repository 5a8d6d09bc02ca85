"""The way to the controller. The agent starts one of its own, where it has it, and starts it again where it died."""

import logging
import time
from enum import Enum, auto
from pathlib import Path

from gravac_agent.reporting.connection import ControllerConnection, ErrorAnswer, NoAnswer
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.reporting.outbox import Closing
from gravac_agent.settings import AgentSettings

log = logging.getLogger("gravac.agent")

REQUEST_SECONDS = 2.0
"""Total deadline of a request to the controller."""
FALLBACK_WINDOWS = 3
"""Windows without an answer from the controller before all ranks go dense."""
START_SECONDS = 30.0
"""Longest time for the agent's own controller to start."""
CLOSING_START_SECONDS = 15.0
"""Longest time to start it again at the end, where it died before the last windows were delivered."""


class Contact(Enum):
    """What is known of the controller at the other end."""

    NONE = auto()
    """It does not know the job, or may have lost it. To register again is harmless."""
    REGISTERED = auto()
    """It knows the job."""
    HUNG = auto()
    """It gave no valid answer, not even an error."""


class ControllerLink:
    """Opens connections to the controller.

    Args:
        settings: The agent's settings.
        process: The agent's own controller; None: the settings name one that runs already.
        closing: The end of the training.
    """

    def __init__(self, settings: AgentSettings, process: ControllerProcess | None, closing: Closing) -> None:
        self.process, self._closing = process, closing
        self.url = settings.controller if process is None else None
        """The controller's address, once known."""
        self._token = settings.token if process is None else process.token
        self.contact = Contact.NONE
        self._unanswered_since = 0.0  # the oldest queued window, or the answer to the one before it
        # When the first start of its own controller ended, well or not; 0: there is none.
        self._start_ended = None if process is not None else 0.0
        self._cannot_start = False  # the agent's own controller did not, when it was last tried

    @property
    def data_dir(self) -> Path | None:
        """Folder of the journals of the agent's own controller."""
        return None if self.process is None else self.process.data_dir

    @property
    def registered(self) -> bool:
        """Whether the controller knows the job."""
        return self.contact is Contact.REGISTERED

    @property
    def replaces_next(self) -> bool:
        """Whether the agent's own controller hangs at the end of the training, so that another one is started."""
        return self.contact is Contact.HUNG and self.process is not None and self._closing.began

    def waits(self) -> None:
        """Note that the controller has something to answer from now on."""
        self._unanswered_since = time.monotonic()

    def silent(self, windows: int) -> bool:
        """Return whether the controller had time to answer, and left this many windows without an answer.

        Windows may be shorter than an answer or the controller's start, so seconds count, too.
        """
        if windows < FALLBACK_WINDOWS:
            return False
        patience = START_SECONDS if self._start_ended is None else REQUEST_SECONDS
        return time.monotonic() - max(self._unanswered_since, self._start_ended or 0.0) >= patience

    def notice_death(self) -> None:
        """Forget what is known of the agent's own controller where it has ended."""
        if self.registered and self.process is not None and not self.process.alive():
            log.warning("the controller ended; starting it again")
            self.contact = Contact.NONE

    def open(self) -> ControllerConnection:
        """Return a connection, for which the agent's own controller is started if it does not run.

        Raises:
            NoAnswer: The controller did not start.
        """
        if self.process is not None:
            self._start(self.process)
        if self.url is None:
            raise NoAnswer("no controller yet")
        return self.connection(self.url)

    def connection(self, url: str) -> ControllerConnection:
        """Return a connection to a controller that runs."""
        return ControllerConnection(url, seconds=REQUEST_SECONDS, token=self._token)

    def _start(self, process: ControllerProcess) -> None:
        """Start the agent's own controller if it does not run. At the end of the training, replace one that hangs."""
        if process.alive():
            if not self.replaces_next:
                return
            process.kill()
        self.contact = Contact.NONE
        closing = self._closing.began
        try:
            self.url = process.start(CLOSING_START_SECONDS if closing else START_SECONDS)
        except OSError as error:
            failure = NoAnswer(str(error))
            # A second failure, at the end: a third would not end otherwise.
            failure.lasting = closing and self._cannot_start
            self._cannot_start = True
            raise failure from None
        finally:
            if self._start_ended is None:
                self._start_ended = time.monotonic()
        self._cannot_start = False

    def stop_for(self, job: str) -> None:
        """End the agent's own controller, which serves one job, and let the next one serve this job."""
        if self.process is not None:
            self.process.stop()
            self.process.job, self.url = job, None

    def failed(self, error: NoAnswer) -> None:
        """Note an attempt without a valid answer. The controller may have lost the job."""
        self.contact = Contact.NONE if isinstance(error, ErrorAnswer) else Contact.HUNG

    def outage(self, error: NoAnswer) -> tuple[str, bool]:
        """Return for the log why nothing was delivered, and whether the agent's own controller did not start."""
        starting = self.process is not None and not self.process.alive()
        where = "" if self.url is None else f" at {self.url}"
        what = "no controller" if starting else f"no valid answer from the controller{where}"
        return f"{what}: {error}", starting
