"""The part of gravac inside the trainer: wrap the training loop in ``with Agent(ddp_model, optimizer):``."""

from gravac_agent import integrations
from gravac_agent.agent import Agent
from gravac_agent.errors import AgentError, AgreementError, ClosedError, PeerError, SetupError
from gravac_agent.network.hosts import warn_of_loopback
from gravac_agent.network.link import Link
from gravac_agent.session import AgentState
from gravac_agent.settings import AgentSettings

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
    "integrations",
]

warn_of_loopback()
