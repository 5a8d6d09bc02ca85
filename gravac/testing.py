"""Regression tests with traces: does this version of gravac, with these settings, still decide as in a recorded run?

Works without pytest. The pytest fixture that finds traces is in ``gravac.pytest_plugin``.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from gravac.policies.base import Policy
from gravac.protocol import Decision, PolicySpec
from gravac.replays.redecide import DecisionPair, Redecision, redecide

LISTED = 5
"""Windows that a failure shows with both reasons; of further ones it lists the numbers."""


def assert_decisions(
    trace: str | Path,
    policy: str | Policy | None = None,
    settings: Mapping[str, JsonValue] | None = None,
    exact: bool = False,
) -> Redecision:
    """Decide the windows of a trace again and fail where the ranks would have done something else.

    Args:
        trace: path of a trace.
        policy: such as ``"auto:bound=0.01"``, or an instance; None: the recorded policy.
        settings: by name; override those of ``policy``.
        exact: compare every byte, reasons included. Otherwise phase, CFs, and the CF that the gate lets through.

    Returns:
        What was compared.

    Raises:
        AssertionError: a decision differs; the message shows both.
        TraceError: the trace is damaged.
        ValueError: unknown policy or setting.

    Example::

        def test_decisions(gravac_trace):
            assert_decisions(gravac_trace("last-good-run"), settings={"bound": 0.018})
    """
    __tracebackhide__ = True
    path = Path(trace)
    found = redecide(path, policy, settings, exact)
    if found.differing:
        raise AssertionError(_failure(path, found))
    return found


def _failure(path: Path, found: Redecision) -> str:
    count = len(found.differing)
    lines = [
        f"{path.name}: {count} {'decision differs' if count == 1 else 'decisions differ'} in {found.windows} windows.",
        f"  recorded policy: {_policy(found.recorded_policy)}",
        f"  policy now:      {_policy(found.policy)}",
    ]
    for pair in found.differing[:LISTED]:
        lines += _shown(pair)
    if count > LISTED:
        more = [str(pair.window) for pair in found.differing[LISTED:][:40]]
        lines.append(f"and after windows {', '.join(more)}{' …' if count > LISTED + len(more) else ''}")
    return "\n".join([*lines, found.caution, *found.notes])


def _shown(pair: DecisionPair) -> list[str]:
    where = "at the start" if pair.window < 0 else f"after window {pair.window}, step {pair.last_step}"
    measured = "" if pair.measured_cf is None else f" (measured at CF {pair.measured_cf:g})"
    return [
        f"{where}{measured}:",
        f"  recorded: {_decision(pair.recorded, pair.sent)}",
        f"  now:      {_decision(pair.other, pair.other_sent)}",
    ]


def _decision(decision: Decision, sent: float | None) -> str:
    cf, lowest = decision.cf_candidate, decision.cf_minimum
    text = f"CF {cf:g}" + ("" if lowest == cf else f" (else {lowest:g})")
    if sent is not None and sent != cf:
        text += f", of which ε {decision.epsilon:g} lets CF {sent:g} pass"
    return f"{text}, {decision.phase}, {decision.rule}: {decision.reason}"


def _policy(spec: PolicySpec) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in spec.settings.items())
    return f"{spec.name}: {settings}" if settings else spec.name
