"""Inside the trainer: wrap it in one ``with Agent(ddp_model, optimizer):`` block."""

from gravac_agent.agent import Agent
from gravac_agent.errors import AgentError, AgreementError, ClosedError, PeerError, SetupError
from gravac_agent.network.hosts import warn_of_loopback
from gravac_agent.network.link import Link
from gravac_agent.settings import AgentSettings
from gravac_agent.status import AgentState

__all__ = [
    "Agent",
    "AgentError",
    "AgentSettings",
    "AgentState",
    "AgreementError",
    "ClosedError",
    "Link",
    "PeerError",
    "SetupError",
]

warn_of_loopback()
