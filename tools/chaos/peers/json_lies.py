"""Lies in JSON: answers of a controller's shape with contents that no controller sends."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from tools.chaos.peers.lies import CF_HUGE, Lie, LieContext, changed
from tools.chaos.peers.messages import Message, answer


def not_a_number(content: Any, context: LieContext, request: Message) -> bytes:
    if isinstance(content, dict) and "decision" in content:
        content["decision"]["epsilon"] = "@"
    else:
        content = {"proofs": "@"}
    return json.dumps(content).replace('"@"', "NaN").encode()


def deep(content: Any, context: LieContext, request: Message) -> bytes:
    return b'{"decision": ' + b"[" * 200_000


def decided(**fields: Any) -> Any:
    """Change fields of the decision, and of the one in the policy's state."""

    def change(content: Any, context: LieContext, request: Message) -> Any:
        state = json.loads(content["policy_state"])
        for decision in (content["decision"], state["decision"]):
            for name, value in fields.items():
                decision[name] = value(decision[name]) if callable(value) else value
        return {**content, "policy_state": json.dumps(state)}

    return change


def other_job(content: Any, context: LieContext, request: Message) -> Any:
    return context.invented(request, job="somebody-elses", policy="static:cf=77")


def other_state(content: Any, context: LieContext, request: Message) -> Any:
    return {**content, "policy_state": context.invented(request, policy="dense")["policy_state"]}


def field(**fields: Any) -> Any:
    """Change fields of the answer."""

    def change(content: Any, context: LieContext, request: Message) -> Any:
        return {**content, **fields}

    return change


def ahead(content: Any, context: LieContext, request: Message) -> Any:
    return {**content, "next_window": content.get("next_window", 0) + 1000}


def old(content: Any, context: LieContext, request: Message) -> Any:
    return context.first.get(request.path, content)


def wrong_type(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    body = json.dumps(context.invented(request)).encode() if reply is None else reply.body
    yield answer("200 OK", body, kind="text/html")


def with_proofs(*proofs: Any) -> Any:
    """Answer a challenge with these proofs, and other requests as a controller might."""

    def change(content: Any, context: LieContext, request: Message) -> Any:
        if not request.path.endswith("/proof"):
            return content
        challenge = request.head.split(b" ", 2)[1].partition(b"challenge=")[2].decode("latin-1")
        return {"proofs": [challenge if proof == "echo" else proof for proof in proofs]}

    return changed(change)


def decision_lie(
    name: str, change: Any, plausible: bool = False, scope: Literal["jobs"] | None = None
) -> Lie:
    return Lie(name, changed(change), keeps_open=True, any_request=False, plausible=plausible, scope=scope)


LIES = (
    Lie("no proof", with_proofs(), keeps_open=True),
    Lie("challenge as proof", with_proofs("echo"), keeps_open=True),
    Lie("false proofs", with_proofs("00" * 32, "not hex", "f" * 64), keeps_open=True),
    Lie("proofs of other types", with_proofs(1, None, {"a": []}), keeps_open=True),
    Lie("NaN", changed(not_a_number), keeps_open=True),
    Lie("deep JSON", changed(deep), keeps_open=True),
    Lie("wrong content type", wrong_type, keeps_open=True, any_request=False, plausible=True),
    decision_lie("phase fallback", decided(phase="fallback")),
    decision_lie(
        "cf 1e9",
        decided(phase="hold", cf_minimum=CF_HUGE, cf_candidate=CF_HUGE, epsilon=0.0, epoch=lambda n: n + 1),
    ),
    decision_lie("lower epoch", decided(epoch=lambda n: max(0, n - 1), cf_minimum=1.0), plausible=True),
    decision_lie("epoch 2**53", decided(epoch=2**53)),
    decision_lie(
        "epoch and window far ahead", decided(epoch=lambda n: n + 10**6, window=lambda n: n + 10**6)
    ),
    decision_lie("decision of another job", other_job),
    decision_lie("policy_state garbage", field(policy_state="\x1b[2J garbage")),
    decision_lie("policy_state of another policy", other_state),
    decision_lie("next_window far ahead", ahead, scope="jobs"),
    decision_lie("next_window 2**53", field(next_window=2**53), scope="jobs"),
    decision_lie("replay of an old content", old, plausible=True),
    decision_lie("one field more", field(extra=1)),
)
