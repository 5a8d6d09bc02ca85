"""Lies: named answers that no controller gives. ``http_lies.py`` and ``json_lies.py`` list the kinds."""

import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from gravac.fold import JobFold
from gravac.policies import parse
from gravac.protocol import Environment, JobSpec, ModelShape
from tools.chaos.peers.messages import Message, answer

CF_HUGE = 1e9


@dataclass
class LieContext:
    """What is known to those that answer with lies. ``elsewhere``: where redirects lead, to a recording server."""

    job: str
    policy: str
    chance: random.Random
    elsewhere: str = "http://127.0.0.1:9/"
    first: dict[str, Any] = field(default_factory=dict)
    """The first honest answer to each kind of request, to repeat it later."""

    def invented(self, request: Message, job: str | None = None, policy: str | None = None) -> Any:
        """Make up an answer of a controller, of this job or another one."""
        fold = JobFold(spec(job or self.job, policy or self.policy))
        path = request.path
        if path.endswith("/windows"):
            return fold.answer().model_dump(mode="json")
        if path.endswith("/jobs"):
            return fold.job_answer().model_dump(mode="json")
        return {}


Responder = Callable[[Message, Message | None, LieContext], Iterator[bytes]]
"""From a request, and its honest answer where there is one, to the pieces of an answer."""
Change = Callable[[Any, LieContext, Message], Any]
"""From an honest answer's JSON to a false one, or to the bytes of one."""


@dataclass(frozen=True)
class Lie:
    """One kind of invalid answer.

    Attributes:
        respond: What it sends.
        keeps_open: The connection stays open afterwards.
        any_request: It answers every request, proofs included; False: it changes an honest decision.
        plausible: An agent may take it for a valid answer, so the limit on requests does not hold.
        slow: Seconds between its pieces.
        scope: The only kind of request that it answers; None: all kinds.
    """

    name: str
    respond: Responder
    keeps_open: bool = False
    any_request: bool = True
    plausible: bool = False
    slow: float = 0.0
    scope: Literal["jobs"] | None = None

    @property
    def needs_honest(self) -> bool:
        """Whether the controller must get the request, because the agent may take the lie for its answer."""
        return not self.any_request

    def answers(self, request: Message) -> bool:
        """Whether it can answer that request."""
        kind = request.path.rsplit("/", 1)[-1]
        return self.any_request or kind == self.scope or (self.scope is None and kind in ("jobs", "windows"))

    def delivered(self, chance: random.Random) -> bool:
        """Whether the controller gets the request before the lie is sent."""
        return self.needs_honest or chance.random() < 0.5

    def send(
        self,
        sock: socket.socket,
        request: Message,
        reply: Message | None,
        context: LieContext,
        closing: threading.Event,
    ) -> bool:
        """Send the lie and return whether the connection stays open. Raises OSError when the other side has gone."""
        for piece in self.respond(request, reply, context):
            sock.sendall(piece)
            if closing.wait(self.slow) if self.slow else closing.is_set():
                return False
        return self.keeps_open


def changed(change: Change) -> Responder:
    """A respond that changes the honest answer, or one made up where there is none."""

    def respond(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
        content: Any = None
        if reply is not None and reply.status == 200:
            content = json.loads(reply.body)
            context.first.setdefault(request.path, json.loads(reply.body))
        else:
            content = context.invented(request)
        content = change(content, context, request)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        yield answer("200 OK", body)

    return respond


def spec(job: str, policy: str) -> JobSpec:
    """Return a made-up job."""
    return JobSpec(
        job=job,
        incarnation="0123456789abcdef",
        world_size=2,
        window_steps=5,
        policy=parse(policy).spec(),
        compressor="topk+bf16",
        memory="residual",
        model=ModelShape(name="Net", tensors=2, elements=1000),
        environment=Environment(
            python="3", torch="2", gravac="0", platform="Linux", backend="gloo", device="cpu"
        ),
    )
