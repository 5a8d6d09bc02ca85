"""What a report's page reads: plain JSON in columns, numbers to nine digits. Text in it can be no markup."""

import json
from collections.abc import Iterable
from importlib.metadata import version

from pydantic import BaseModel

from gravac_controller.columns import COLUMNS, Value
from gravac_controller.report.thinning import Kept
from gravac_controller.report.told import Told, labels, thinning_note
from gravac_controller.views import DecisionView

FORMAT = 1
DIGITS = 9
CURVE_DIGITS = 3
Plain = dict[str, object]


def document(told: list[Told]) -> str:
    """The JSON. ``<`` is written as its escape, so that no text can end the element it stands in."""
    jobs = [_job(one, label) for one, label in zip(told, labels(told), strict=True)]
    whole = {"format": FORMAT, "made_by": f"gravac {version('gravac')}", "jobs": jobs}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _job(told: Told, label: str) -> Plain:
    windows = list(told.windows)
    return {
        "label": label,
        "path": told.path,
        "job": _plain(told.view) | {"job": label},
        "heat": _plain(told.heat),
        "columns": {
            column.name: [_rounded(column.name, one.row[at]) for one in windows]
            for at, column in enumerate(COLUMNS)
        },
        "curves": _curves(windows),
        "dense": _dense(windows),
        **_decisions(told.decisions),
        "figures": {name: getattr(told.figures, name) for name in told.figures.__dataclass_fields__},
        "notes": [*told.notes, *filter(None, [thinning_note(told)])],
    }


def _plain(record: BaseModel) -> Plain:
    found: Plain = record.model_dump(mode="json")
    return found


def _rounded(name: str, value: Value) -> Value:
    """Times to a millisecond, other numbers to nine digits."""
    if not isinstance(value, float):
        return value
    return round(value, 3) if name == "time" else digits(value, DIGITS)


def digits(value: float, count: int) -> float | int:
    """The number with so many digits, written as short as it can be."""
    short = float(f"{value:.{count}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _curves(windows: Iterable[Kept]) -> list[object]:
    """[place among the windows, steps, own, gains] of those that carry one."""
    return [
        [
            at,
            one.curve[0],
            one.curve[1],
            [None if x is None else digits(x, CURVE_DIGITS) for x in one.curve[2]],
        ]
        for at, one in enumerate(windows)
        if one.curve is not None
    ]


def _dense(windows: Iterable[Kept]) -> list[object]:
    """[place among the windows, step, exposed], in seconds, of those that measured the dense step."""
    return [[at, *one.dense] for at, one in enumerate(windows) if one.dense != (None, None)]


def _decisions(views: Iterable[DecisionView]) -> Plain:
    """Candidates change little from one decision to the next: each of them once, and decisions point to them."""
    places: dict[tuple[object, ...], int] = {}
    rows = []
    for view in views:
        it = view.decision
        pointed = [
            places.setdefault(
                (
                    one.cf,
                    _short(one.gain),
                    _short(one.samples_per_second),
                    _short(one.useful_samples_per_second),
                    one.window,
                    one.verdict,
                ),
                len(places),
            )
            for one in it.candidates
        ]
        rows.append(
            [
                round(view.time, 3),
                view.changed,
                view.cf_before,
                it.window,
                it.epoch,
                it.phase,
                it.cf_minimum,
                it.cf_candidate,
                it.epsilon,
                it.rule,
                it.reason,
                pointed,
            ]
        )
    return {"candidates": [list(one) for one in places], "decisions": rows}


def _short(value: float | None) -> float | int | None:
    return None if value is None else digits(value, DIGITS)
