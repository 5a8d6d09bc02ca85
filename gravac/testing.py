"""Traces as regression tests of one's settings: does this gravac, so set, still decide as it did in that run?

The fixture that finds traces is pytest's (``gravac.pytest_plugin``); this needs no pytest.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from gravac.policies.base import Policy
from gravac.protocol import Decision, PolicySpec
from gravac.traces import read_trace
from gravac.traces.redecide import Pair, Redecision, redecide

LISTED = 5
"""Windows that a failure shows with both reasons; of the others it gives the numbers."""


def assert_decisions(
    trace: str | Path,
    policy: str | Policy | None = None,
    settings: Mapping[str, JsonValue] | None = None,
    exact: bool = False,
) -> Redecision:
    """Decide the windows of ``trace`` again, and raise AssertionError where the ranks would have done something else.

    ``policy``: ``"gravac:epsilon=0.4"``, or an instance of one's own; None: the recorded one. ``settings``: go over its
    own. What counts is what the ranks would have done: phase and CFs, and what the gate would have let pass; with
    ``exact`` every byte, reasons too. Returns what was compared. Raises TraceError for a trace that is damaged,
    ValueError for a policy or setting that there is not.
    """
    __tracebackhide__ = True
    path = Path(trace)
    with read_trace(path) as lines:
        found = redecide(lines, policy, settings, exact)
    if found.differing:
        raise AssertionError(_failure(path, found))
    return found


def _failure(path: Path, found: Redecision) -> str:
    count = len(found.differing)
    lines = [
        f"{path.name}: {count} {'decision differs' if count == 1 else 'decisions differ'} in {found.windows} windows.",
        f"  recorded rule: {_rule(found.recorded_policy)}",
        f"  rule now:      {_rule(found.policy)}",
    ]
    for pair in found.differing[:LISTED]:
        lines += _told(pair)
    if count > LISTED:
        more = [str(pair.window) for pair in found.differing[LISTED:][:40]]
        lines.append(f"and after windows {', '.join(more)}{' …' if count > LISTED + len(more) else ''}")
    return "\n".join([*lines, found.caution, *found.notes])


def _told(pair: Pair) -> list[str]:
    where = "at the start" if pair.window < 0 else f"after window {pair.window}, step {pair.last_step}"
    measured = "" if pair.measured_cf is None else f" (measured at CF {pair.measured_cf:g})"
    return [
        f"{where}{measured}:",
        f"  recorded: {_decision(pair.recorded, pair.sent)}",
        f"  now:      {_decision(pair.other, pair.other_sent)}",
    ]


def _decision(decision: Decision, sent: float | None) -> str:
    cf, lowest = decision.cf_candidate, decision.cf_minimum
    told = f"CF {cf:g}" + ("" if lowest == cf else f" (else {lowest:g})")
    if sent is not None and sent != cf:
        told += f", of which ε {decision.epsilon:g} lets CF {sent:g} pass"
    return f"{told}, {decision.phase}, {decision.rule}: {decision.reason}"


def _rule(spec: PolicySpec) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in spec.settings.items())
    return f"{spec.name}: {settings}" if settings else spec.name
