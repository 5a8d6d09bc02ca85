"""What lies are: answers that are not valid ones of a controller, by name. The kinds are in ``framing.py`` and
``contents.py``."""

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
from tools.chaos.wire import Message, answer

CF_HUGE = 1e9


@dataclass
class Talk:
    """What liars of one episode know. ``elsewhere``: where redirects lead, to a server that records what comes."""

    job: str
    policy: str
    chance: random.Random
    elsewhere: str = "http://127.0.0.1:9/"
    first: dict[str, Any] = field(default_factory=dict)
    """The first honest answer to each kind of request, to repeat it later."""

    def invented(self, request: Message, job: str | None = None, policy: str | None = None) -> Any:
        """An answer as it might come from a controller of this job, or of another one."""
        fold = JobFold(spec(job or self.job, policy or self.policy))
        path = request.path
        if path.endswith("/windows"):
            return fold.answer().model_dump(mode="json")
        if path.endswith("/jobs"):
            return fold.job_answer().model_dump(mode="json")
        return {}


Speech = Callable[[Message, Message | None, Talk], Iterator[bytes]]
"""Pieces of an answer to a request, of which the honest answer may be known."""
Change = Callable[[Any, Talk, Message], Any]
"""An honest answer's JSON, made false."""


@dataclass(frozen=True)
class Lie:
    """One kind.

    Attributes:
        speech: what it sends.
        keeps: the connection stays open afterwards.
        scratch: is told about everything, proofs included; the others change an honest decision.
        ambiguous: an agent may take it for a valid answer, so the limit on requests does not hold.
        slow: seconds between its pieces.
    """

    name: str
    speech: Speech
    keeps: bool = False
    scratch: bool = True
    ambiguous: bool = False
    slow: float = 0.0
    scope: Literal["jobs"] | None = None
    """Kind of request that it is about, where it is about one."""

    @property
    def needs_honest(self) -> bool:
        """Whether the controller must have got the request: an agent may believe that it has."""
        return not self.scratch

    def about(self, request: Message) -> bool:
        """Whether it can be told as the answer to that request."""
        kind = request.path.rsplit("/", 1)[-1]
        return self.scratch or kind == self.scope or (self.scope is None and kind in ("jobs", "windows"))

    def delivered(self, chance: random.Random) -> bool:
        """Whether the controller gets the request before the lie is told."""
        return self.needs_honest or chance.random() < 0.5

    def tell(
        self,
        sock: socket.socket,
        request: Message,
        reply: Message | None,
        talk: Talk,
        closing: threading.Event,
    ) -> bool:
        """Send it; returns whether the connection goes on. Raises OSError when the other side has gone."""
        for piece in self.speech(request, reply, talk):
            sock.sendall(piece)
            if closing.wait(self.slow) if self.slow else closing.is_set():
                return False
        return self.keeps


def changed(change: Change) -> Speech:
    """A speech that changes the honest answer, or one made up where there is none."""

    def speak(request: Message, reply: Message | None, talk: Talk) -> Iterator[bytes]:
        told: Any = None
        if reply is not None and reply.status == 200:
            told = json.loads(reply.body)
            talk.first.setdefault(request.path, json.loads(reply.body))
        else:
            told = talk.invented(request)
        told = change(told, talk, request)
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        yield answer("200 OK", body)

    return speak


def spec(job: str, policy: str) -> JobSpec:
    """A job, as somebody who does not know it would make it up."""
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
