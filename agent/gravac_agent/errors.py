"""What the agent raises.

AgentError
├── SetupError       wrong use: the message says what to change
├── ClosedError      the agent was used after its ``with`` block
├── AgreementError   ranks disagree on the plan; raised before any collective of another shape
└── PeerError        a collective failed, because another rank ended or does not answer
"""

import re


class AgentError(RuntimeError):
    """Base of the agent's errors."""


class SetupError(AgentError):
    """The agent cannot start as asked."""


class ClosedError(AgentError):
    """The agent is closed."""


class AgreementError(AgentError):
    """Ranks would apply different plans (promise P2)."""


class PeerError(AgentError):
    """Another rank ended or does not answer, so a collective failed; the original error is its ``__cause__``."""


_NETWORK = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE
)
"""How the errors of a process group's backend read: they are plain RuntimeErrors."""


def peer_error(error: Exception) -> Exception:
    """``error`` as a PeerError if a process group's backend raised it, else unchanged."""
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
