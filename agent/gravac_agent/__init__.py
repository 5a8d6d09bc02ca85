"""Inside the trainer: wrap it in one ``with Agent(ddp_model, optimizer):`` block."""

from gravac_agent.agent import Agent
from gravac_agent.errors import AgentError, AgreementError, ClosedError, SetupError
from gravac_agent.link import Link
from gravac_agent.settings import AgentSettings
from gravac_agent.state import AgentState

__all__ = [
    "Agent",
    "AgentError",
    "AgentSettings",
    "AgentState",
    "AgreementError",
    "ClosedError",
    "Link",
    "SetupError",
]
