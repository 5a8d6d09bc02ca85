"""Lies in JSON: what looks like an answer of a controller, and says what none would say."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from tools.chaos.liars import CF_HUGE, Lie, Talk, changed
from tools.chaos.wire import Message, answer


def not_a_number(told: Any, talk: Talk, request: Message) -> bytes:
    if isinstance(told, dict) and "decision" in told:
        told["decision"]["epsilon"] = "@"
    else:
        told = {"proofs": "@"}
    return json.dumps(told).replace('"@"', "NaN").encode()


def deep(told: Any, talk: Talk, request: Message) -> bytes:
    return b'{"decision": ' + b"[" * 200_000


def decided(**fields: Any) -> Any:
    """Changes fields of the decision, and of the one in the policy's state."""

    def change(told: Any, talk: Talk, request: Message) -> Any:
        state = json.loads(told["policy_state"])
        for decision in (told["decision"], state["decision"]):
            for name, value in fields.items():
                decision[name] = value(decision[name]) if callable(value) else value
        return {**told, "policy_state": json.dumps(state)}

    return change


def other_job(told: Any, talk: Talk, request: Message) -> Any:
    return talk.invented(request, job="somebody-elses", policy="static:cf=77")


def other_state(told: Any, talk: Talk, request: Message) -> Any:
    return {**told, "policy_state": talk.invented(request, policy="dense")["policy_state"]}


def field(**fields: Any) -> Any:
    """Changes fields of the answer."""

    def change(told: Any, talk: Talk, request: Message) -> Any:
        return {**told, **fields}

    return change


def ahead(told: Any, talk: Talk, request: Message) -> Any:
    return {**told, "next_window": told.get("next_window", 0) + 1000}


def old(told: Any, talk: Talk, request: Message) -> Any:
    return talk.first.get(request.path, told)


def wrong_type(request: Message, reply: Message | None, talk: Talk) -> Iterator[bytes]:
    body = json.dumps(talk.invented(request)).encode() if reply is None else reply.body
    yield answer("200 OK", body, kind="text/html")


def with_proofs(*proofs: Any) -> Any:
    """To a challenge, these proofs; to the rest what a controller might say."""

    def change(told: Any, talk: Talk, request: Message) -> Any:
        if not request.path.endswith("/proof"):
            return told
        challenge = request.head.split(b" ", 2)[1].partition(b"challenge=")[2].decode("latin-1")
        return {"proofs": [challenge if proof == "echo" else proof for proof in proofs]}

    return changed(change)


def decision_lie(
    name: str, change: Any, ambiguous: bool = False, scope: Literal["jobs"] | None = None
) -> Lie:
    return Lie(name, changed(change), keeps=True, scratch=False, ambiguous=ambiguous, scope=scope)


LIES = (
    Lie("no proof", with_proofs(), keeps=True),
    Lie("challenge as proof", with_proofs("echo"), keeps=True),
    Lie("false proofs", with_proofs("00" * 32, "not hex", "f" * 64), keeps=True),
    Lie("proofs of other types", with_proofs(1, None, {"a": []}), keeps=True),
    Lie("NaN", changed(not_a_number), keeps=True),
    Lie("deep JSON", changed(deep), keeps=True),
    Lie("wrong content type", wrong_type, keeps=True, scratch=False, ambiguous=True),
    decision_lie("phase fallback", decided(phase="fallback")),
    decision_lie(
        "cf 1e9",
        decided(phase="hold", cf_minimum=CF_HUGE, cf_candidate=CF_HUGE, epsilon=0.0, epoch=lambda n: n + 1),
    ),
    decision_lie("lower epoch", decided(epoch=lambda n: max(0, n - 1), cf_minimum=1.0), ambiguous=True),
    decision_lie("epoch 2**53", decided(epoch=2**53)),
    decision_lie(
        "epoch and window far ahead", decided(epoch=lambda n: n + 10**6, window=lambda n: n + 10**6)
    ),
    decision_lie("decision of another job", other_job),
    decision_lie("policy_state garbage", field(policy_state="\x1b[2J garbage")),
    decision_lie("policy_state of another policy", other_state),
    decision_lie("next_window far ahead", ahead, scope="jobs"),
    decision_lie("next_window 2**53", field(next_window=2**53), scope="jobs"),
    decision_lie("replay of an old answer", old, ambiguous=True),
    decision_lie("one field more", field(extra=1)),
)
