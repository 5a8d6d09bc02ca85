"""A typed client of the controller, on the standard library's HTTP.

    from gravac_controller.client import Client

    with Client("http://127.0.0.1:8756") as controller:
        for job in controller.jobs():
            print(job.job, job.state, job.cf, controller.job(job.job).decision.reason)

Answers are the records of ``gravac_controller.views.models``. Errors, all subclasses of ``ControllerError``:
``NoController`` (no answer), ``NotAController`` (another service or version), ``Refused`` (an HTTP error with its
reason).
"""

from gravac_controller.client.client import Client, OverrideState
from gravac_controller.client.connection import ControllerError, NoController, NotAController, Refused
from gravac_controller.client.discovery import owner_control_token, running_controllers
from gravac_controller.client.events import Message

__all__ = [
    "Client",
    "ControllerError",
    "Message",
    "NoController",
    "NotAController",
    "OverrideState",
    "Refused",
    "owner_control_token",
    "running_controllers",
]
