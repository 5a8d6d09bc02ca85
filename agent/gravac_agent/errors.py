"""Errors of the agent.

AgentError
├── SetupError       wrong use; the message says what to change
├── ClosedError      the agent was used after it was closed
├── AgreementError   ranks disagree on settings or plan; raised on all, before any collective of another size
└── PeerError        a collective failed because another rank ended or does not answer
"""

import re


class AgentError(RuntimeError):
    """Base class of the agent's errors."""


class SetupError(AgentError):
    """The agent is used wrongly or cannot start; the message says what to change."""


class ClosedError(AgentError):
    """The agent was closed; make a new one."""


class AgreementError(AgentError):
    """Ranks have different settings or plans. Raised on all ranks, before they exchange a gradient (promise P2)."""


class PeerError(AgentError):
    """A collective failed because another rank ended or does not answer. ``__cause__`` is an original error."""


_NETWORK = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE
)
"""Words in the errors of a process group's backend, which are plain RuntimeErrors."""


def peer_error(error: Exception) -> Exception:
    """Return ``error`` as a PeerError if a process group's backend raised it, else unchanged."""
    if (
        isinstance(error, AgentError)
        or not isinstance(error, RuntimeError)
        or not _NETWORK.search(str(error))
    ):
        return error
    wrapped = PeerError(
        "a collective failed because another rank ended or did not answer in time; the first error is in that rank's "
        f"log. Original error: {error}"
    )
    wrapped.__cause__ = error
    return wrapped
