"""How a codec with settings is written: ``name`` or ``name:setting=value,setting=value``."""

import inspect
import json
from collections.abc import Callable
from typing import Any, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gravac.wording import did_you_mean

T = TypeVar("T")
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_NUMBERS = {int, float, type(None)}


def split(text: str, what: str = "compressor") -> tuple[str, dict[str, Any]]:
    """Name and settings; values are JSON where they can be, else text. Raises ValueError for what cannot be read,
    saying ``what`` the text is for."""
    name, _, rest = text.strip().partition(":")
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        setting, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not setting or not value:
            raise ValueError(f"{what}={text!r}: {part!r} must be written setting=value")
        if setting in found:
            raise ValueError(f"{what}={text!r}: setting {setting!r} is given twice")
        try:
            found[setting] = json.loads(value)
        except ValueError:
            found[setting] = value
    return name, found


def make(
    kind: Callable[..., T],
    text: str,
    settings: dict[str, Any],
    *leading: object,
    what: str = "compressor",
) -> T:
    """``kind`` with these settings as keywords. Raises ValueError naming the setting that it does not have or take."""
    parameters = inspect.signature(kind).parameters
    known = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    for setting, value in settings.items():
        if setting not in known:
            hint, listed = did_you_mean(setting, known), ", ".join(known) or "none"
            raise ValueError(f"{what}={text!r} has no setting {setting!r}{hint}; it has {listed}")
        if wrong := _misfit(parameters[setting].annotation, value):
            raise ValueError(f"{what}={text!r}: {setting}={value!r}: {wrong}")
    try:
        return kind(*leading, **settings)
    except TypeError as error:
        raise ValueError(f"{what}={text!r}: {error}") from None


def _misfit(annotation: Any, value: object) -> str:
    """Why ``value`` is not the number that a keyword is annotated as; empty when it is, or where none is wanted."""
    if not set(get_args(annotation) or (annotation,)) <= _NUMBERS:
        return ""
    try:
        TypeAdapter(annotation, config=_STRICT).validate_python(value)
    except ValidationError as error:
        return error.errors()[0]["msg"]
    return ""
