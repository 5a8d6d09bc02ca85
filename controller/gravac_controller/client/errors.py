"""What can go wrong in asking a controller.

ControllerError
├── NoController      nobody answers at that address
├── NotAController    something answers, but no gravac controller of this version
└── Refused           the controller says no; ``status`` and ``problem`` say why
"""

from gravac_controller.views.models import Problem


class ControllerError(Exception):
    """Base of all of them; the text is for people."""


class NoController(ControllerError):
    """No connection, or it broke before the answer was whole."""


class NotAController(ControllerError):
    """The answer cannot be read: another service, or a controller of another version."""


class Refused(ControllerError):
    """An answer of 400 or more."""

    def __init__(self, status: int, problem: Problem) -> None:
        errors = "; ".join(f"{one.field}: {one.message}" for one in problem.errors[1:])
        super().__init__(f"{status} {problem.title}: {problem.detail}{f' ({errors})' if errors else ''}")
        self.status, self.problem = status, problem
