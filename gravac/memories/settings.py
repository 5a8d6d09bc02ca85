"""How a memory gets its settings: a frozen model, checked strictly, from keywords or from one line of text."""

import json
from typing import Any

from pydantic import ValidationError

from gravac.protocol import Record
from gravac.wording import did_you_mean, first_problem


class MemorySettings(Record):
    """Base of every memory's settings; alone it says that there are none."""


def resolve(memory: str, model: type[MemorySettings], given: dict[str, Any]) -> MemorySettings:
    """Check ``given``. Raises ValueError naming memory, setting, value and what is allowed."""
    unknown = sorted(set(given) - set(model.model_fields))
    if unknown:
        allowed = ", ".join(model.model_fields) or "none"
        hint = did_you_mean(unknown[0], model.model_fields)
        raise ValueError(
            f"memory={memory!r} has no setting {unknown[0]!r}{hint}; its settings are: {allowed}"
        )
    try:
        # Through JSON, so that text and keywords obey one set of rules.
        return model.model_validate_json(json.dumps(given))
    except TypeError as error:
        raise ValueError(f"memory={memory!r}: settings must be numbers or texts: {error}") from None
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        field = model.model_fields.get(str(where[0])) if where else None
        meaning = f". Meaning: {field.description}" if field and field.description else ""
        raise ValueError(f"memory={memory!r}, setting {first_problem(error)}{meaning}") from None


def read(text: str) -> tuple[str, dict[str, Any]]:
    """``name:setting=value,setting=value`` as name and settings. Raises ValueError saying what cannot be read."""
    name, _, rest = text.strip().partition(":")
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        setting, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not setting or not value:
            raise ValueError(f"memory={text!r}: {part!r} must be written setting=value")
        if setting in given:
            raise ValueError(f"memory={text!r}: setting {setting!r} is given twice")
        given[setting] = _value(value)
    return name, given


def write(name: str, settings: MemorySettings) -> str:
    """What ``read`` understands: the name, and every setting that is not at its default."""
    changed = settings.model_dump(exclude_defaults=True)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in changed.items()}
    return name + (":" + ",".join(f"{k}={v}" for k, v in texts.items()) if texts else "")


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
