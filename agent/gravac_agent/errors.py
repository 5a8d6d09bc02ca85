"""What the agent raises.

AgentError
├── SetupError       wrong use: the message says what to change
├── ClosedError      the agent was used after its ``with`` block
└── AgreementError   ranks disagree on the plan; raised before any collective of another shape
"""


class AgentError(RuntimeError):
    """Base of the agent's errors."""


class SetupError(AgentError):
    """The agent cannot start as asked."""


class ClosedError(AgentError):
    """The agent is closed."""


class AgreementError(AgentError):
    """Ranks would apply different plans (promise P2)."""
