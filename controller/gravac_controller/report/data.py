"""What a report's page reads: plain JSON, numbers to nine digits. Text in it can be no markup."""

import json
from dataclasses import asdict
from importlib.metadata import version

from pydantic import BaseModel

from gravac_controller.report.told import Told, labels, thinning_note
from gravac_controller.views.history import Plain, plain

FORMAT = 1


def document(told: list[Told]) -> str:
    """The JSON. ``<`` is written as its escape, so that no text can end the element it stands in."""
    jobs = [_job(one, label) for one, label in zip(told, labels(told), strict=True)]
    whole = {"format": FORMAT, "made_by": f"gravac {version('gravac')}", "jobs": jobs}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _job(told: Told, label: str) -> Plain:
    return {
        "label": label,
        "path": told.path,
        "job": _record(told.view) | {"job": label},
        "heat": _record(told.heat),
        **plain(list(told.history.windows), told.history.decisions(), exact=False),
        "figures": asdict(told.figures),
        "notes": [*told.notes, *filter(None, [thinning_note(told)])],
    }


def _record(record: BaseModel) -> Plain:
    found: Plain = record.model_dump(mode="json")
    return found
