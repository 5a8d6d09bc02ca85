"""``gravac replay --policy … --set …``: another rule's decisions beside the recorded ones."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding

from gravac.protocol import Decision, PolicySpec
from gravac.registry import parse_settings
from gravac.traces import read_trace
from gravac.traces.redecide import Pair, Redecision, redecide
from gravac.wording import printable
from gravac_controller.cli.wording import factor


def other_rule(trace: Path, policy: str | None, changes: tuple[str, ...], as_json: bool) -> bool:
    """Show it; whether it differs anywhere. Raises TraceError, and click's own error for a rule that there is not."""
    settings: dict[str, Any] = {}
    try:
        for change in changes:
            settings |= parse_settings(change, "--set: ")
        with read_trace(trace) as lines:
            found = redecide(lines, policy, settings)
    except ValueError as error:
        if hasattr(error, "line"):  # of the trace
            raise
        raise click.UsageError(printable(str(error))) from None
    if as_json:
        click.echo(json.dumps(_as_json(trace, found)))
    else:
        _show(found)
    return bool(found.differing)


def _show(found: Redecision) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=False)
    console.print(f"recorded  {_rule(found.recorded_policy, found.policy)}")
    console.print(f"other     {_rule(found.policy, found.recorded_policy)}")
    for run in runs(found.differing):
        console.print()
        console.print(_heading(run), style="bold")
        first = run[0]
        for who, decision, sent in (
            ("recorded", first.recorded, first.sent),
            ("other", first.other, first.other_sent),
        ):
            console.print(Padding(_told(who, decision, sent), (0, 0, 0, 2)))
        if found.first in run:
            console.print("\n--- from here on the windows follow from the recorded decisions alone ---")
    count = len(found.differing)
    console.print()
    words = "decision differs" if count == 1 else "decisions differ"
    console.print(f"{count} {words} in {found.windows} windows. {found.caution}")
    for note in found.notes:
        console.print(f"note: {printable(note)}")


def runs(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Windows one after the other that both rules decide as they did the one before."""
    found: list[list[Pair]] = []
    for pair in pairs:
        last = found[-1][-1] if found else None
        if last is not None and last.window + 1 == pair.window and _kind(last) == _kind(pair):
            found[-1].append(pair)
        else:
            found.append([pair])
    return found


def _kind(pair: Pair) -> tuple[object, ...]:
    def of(one: Decision) -> tuple[object, ...]:
        return one.rule, one.phase, one.cf_minimum, one.cf_candidate

    return pair.measured_cf, of(pair.recorded), of(pair.other), pair.sent, pair.other_sent


def _heading(run: list[Pair]) -> str:
    first, last = run[0], run[-1]
    if first.window < 0:
        return "At the start"
    where = f"Window {first.window}" if first is last else f"Windows {first.window} to {last.window}"
    cf = first.measured_cf
    measured = "" if cf is None else ", measured dense" if cf == 1.0 else f", measured at {_cf(cf)}"
    return f"{where}{measured}{'' if first is last else '; the reasons are of the first'}"


def _cf(cf: float) -> str:
    return "dense" if cf == 1.0 else f"CF {factor(cf)}"


def _told(who: str, decision: Decision, sent: float | None) -> str:
    cf = _cf(decision.cf_candidate)
    if sent is not None and sent != decision.cf_candidate:
        cf += f", but ε lets only {_cf(sent)} pass"
    return printable(f"{who:8}  {cf}, {decision.phase}, {decision.rule}: {decision.reason}")


def _rule(spec: PolicySpec, other: PolicySpec) -> str:
    """Name, and the settings that the other one does not have alike."""
    alike = other.settings if other.name == spec.name else {}
    own = [
        f"{name}={value}"
        for name, value in spec.settings.items()
        if name not in alike or alike[name] != value
    ]
    return printable(spec.name + (f": {', '.join(own)}" if own else ""))


def _as_json(trace: Path, found: Redecision) -> dict[str, Any]:
    return {
        "path": str(trace),
        "recorded_policy": found.recorded_policy.model_dump(),
        "policy": found.policy.model_dump(),
        "windows": found.windows,
        "first_difference": None if found.first is None else found.first.window,
        "caution": found.caution,
        "differing": [_pair(pair) for pair in found.differing],
        "notes": found.notes,
    }


def _pair(pair: Pair) -> dict[str, Any]:
    def decision(one: Decision, sent: float | None) -> dict[str, Any]:
        return {**one.model_dump(), "sent_next": sent}

    return {
        "window": pair.window,
        "line": pair.line,
        "measured_cf": pair.measured_cf,
        "last_step": pair.last_step,
        "recorded": decision(pair.recorded, pair.sent),
        "other": decision(pair.other, pair.other_sent),
    }
