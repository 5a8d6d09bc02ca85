"""Operators' orders: what they do to decisions. Pure, as policies are, so that a trace with orders replays alike.

An order takes effect with the decision on the next window, at a new epoch. While it is in force, the policy is not
asked and learns nothing, windows have the job's length, and the codec stays unless the order names one. ``resume``
restores the decision that the policy had made before, with its state; so does a new start of the trainer (``ended``).
"""

from gravac.codec_text import split_settings
from gravac.policies.base import Plan, Policy, PolicyState, Verdict
from gravac.policies.windows import gain_of, next_decision
from gravac.protocol import Decision, JobSpec, Order, Override, WindowReport
from gravac.wording import format_cf, format_gain

LARGEST_PIN = 1000.0
"""Largest CF that an operator may pin, unless the policy may choose a larger one."""


def decide(policy: Policy, state: PolicyState, ordered: Override | None, report: WindowReport) -> Verdict:
    """Decide after one window, by the order in force or else by the policy.

    Args:
        policy: The job's policy.
        state: Its state, with the decision in force during the window.
        ordered: The newest order since the last decision, if there is one.
        report: The window.
    """
    if ordered is None and state.override is not None:
        return _confirm(state, state.override, report)
    if ordered is None or (ordered.action == "resume" and state.override is None):
        return policy.decide(state, report)
    if ordered.action == "resume":
        return _release(state, ordered, report)
    return _obey(policy, state, ordered, report)


def pinned_plan(policy: Policy, spec: JobSpec, in_force: Decision, order: Order) -> Plan:
    """Return the plan that a pin is about: with the codec that it names, else with one that reaches its CF.

    That is the codec in force if it can, else one that has exactly this size, else one that takes any CF.

    Args:
        policy: The job's policy, fitted to it.
        spec: The job.
        in_force: The decision in force.
        order: A pin.

    Raises:
        ValueError: No codec reaches the CF, or the one that was named does not. The message names what can be pinned.
    """
    cf, codecs = _pinned(order), (None, *policy.codecs())
    sized = [codec for codec in codecs if spec.sizes_of(codec)]
    now = in_force.codec if order.codec is None else _codec(policy, in_force, order)
    family = _family(spec, now)
    sized.sort(key=lambda codec: _family(spec, codec) != family)
    others = (*sized, *(codec for codec in codecs if codec not in sized)) if order.codec is None else ()
    for codec in (now, *others):
        if spec.reached(codec, cf) == cf:
            return Plan(codec, cf)
    can = [f"{size.cf:g} with {_name(spec, codec)}" for codec in sized for size in spec.sizes_of(codec)]
    can += [f"any with {_name(spec, codec)}" for codec in codecs if codec not in sized]
    only = " or ".join(f"{size.cf:g}" for size in spec.sizes_of(now))
    raise ValueError(
        f"{_name(spec, now)} sends {only}, not {cf:g}. What can be pinned: 1 (dense), {', '.join(can)}"
    )


def _name(spec: JobSpec, codec: str | None) -> str:
    return spec.compressor if codec is None else codec


def _family(spec: JobSpec, codec: str | None) -> str:
    return split_settings(_name(spec, codec))[0]


def _obey(policy: Policy, state: PolicyState, order: Override, report: WindowReport) -> Verdict:
    own = state.decision if state.suspended is None else state.suspended
    if order.action == "pause":
        minimum, candidate = own.cf_minimum, own.cf_candidate
        if own.phase != "hold":
            candidate = minimum  # the candidate was only being tried
        epsilon, words = own.epsilon, f"{order.actor} paused exploring: {_holding(candidate)}"
        codec = own.codec
    else:
        codec = _codec(policy, state.decision, order)
        minimum = candidate = _pinned(order)
        epsilon, words = 0.0, _pinning(order)
    decision = next_decision(
        state.decision,
        report,
        "paused" if order.action == "pause" else "pinned",
        words + (f", because: {order.note}" if order.note else "."),
        phase="hold",
        minimum=minimum,
        candidate=candidate,
        candidates=own.candidates,
        epsilon=epsilon,
        codec=codec,
        window_steps=None,
    )
    return _next_epoch(state, decision, override=order, suspended=own)


def _confirm(state: PolicyState, order: Override, report: WindowReport) -> Verdict:
    cf = state.decision.cf_candidate
    gain = gain_of(report, cf, state.decision.codec)
    keeps = "" if gain is None or cf == 1.0 else f", which keeps {format_gain(gain)} of the gradient"
    done = "paused exploring" if order.action == "pause" else "pinned it"
    reason = f"{_holding(cf)}{keeps}: {order.actor} {done}."
    decision = next_decision(state.decision, report, state.decision.rule, reason)
    return Verdict(decision, state.model_copy(update={"decision": decision}))


def _release(state: PolicyState, order: Override, report: WindowReport) -> Verdict:
    own = state.suspended
    assert own is not None  # ``PolicyState`` ensures it
    because = f", because: {order.note}" if order.note else "."
    decision = next_decision(
        state.decision,
        report,
        "resumed",
        f"{order.actor} gave the decision back to the policy, which goes on at {format_cf(own.cf_candidate)} "
        f"({own.phase}){because}",
        phase=own.phase,
        minimum=own.cf_minimum,
        candidate=own.cf_candidate,
        candidates=own.candidates,
        epsilon=own.epsilon,
        codec=own.codec,
        window_steps=own.window_steps,
    )
    return _next_epoch(state, decision, override=None, suspended=None)


def ended(state: PolicyState) -> PolicyState:
    """Return a state without the order in force, for a new start of the trainer: an order ends with its start."""
    order, own = state.override, state.suspended
    if order is None or own is None:
        return state
    before, why = state.decision, f", because: {order.note}" if order.note else ""
    reason = (
        f"The order of {order.actor} ({order.action}{why}) ended with the start of the training that it was given to: "
        f"the policy goes on at {format_cf(own.cf_candidate)} ({own.phase})."
    )
    changes = {"window": before.window, "epoch": before.epoch + 1, "rule": "resumed", "reason": reason}
    decision = own.model_copy(update=changes)
    return state.model_copy(update={"decision": decision, "override": None, "suspended": None})


def _next_epoch(
    state: PolicyState, decision: Decision, *, override: Override | None, suspended: Decision | None
) -> Verdict:
    """Begin an epoch even if what is sent stays: somebody else is responsible for it now."""
    decision = decision.model_copy(update={"epoch": state.decision.epoch + 1})
    changes = {"decision": decision, "override": override, "suspended": suspended}
    return Verdict(decision, state.model_copy(update=changes))


def _codec(policy: Policy, in_force: Decision, order: Order) -> str | None:
    """Return the codec of an order as decisions have it: None for the job's compressor."""
    if order.codec is None:
        return in_force.codec
    return order.codec if order.codec in policy.codecs() else None


def _pinned(order: Order) -> float:
    return 1.0 if order.cf is None else order.cf


def _pinning(order: Override) -> str:
    cf = _pinned(order)
    if cf == 1.0:
        return f"{order.actor} ordered dense until further notice"
    using = "" if order.codec is None else f" with {order.codec}"
    return f"{order.actor} pinned {format_cf(cf)}{using} until further notice, whatever its gain"


def _holding(cf: float) -> str:
    return "Staying dense" if cf == 1.0 else f"Holding {format_cf(cf)}"
