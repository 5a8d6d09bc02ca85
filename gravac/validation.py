"""Turns pydantic's errors into one sentence: which field, which value, what is wrong."""

from pydantic import ValidationError

_VALUE_CHARACTERS = 80
_PREFIXES = ("Value error, ", "Assertion failed, ")


def plain(message: str) -> str:
    """pydantic's message of a validator of ours, as we wrote it: without pydantic's own first words."""
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message


def first_problem(error: ValidationError) -> str:
    """The first problem as ``field: what is wrong (got value)``, a few hundred characters at most."""
    problems = error.errors(include_url=False, include_context=False)
    problem = problems[0]
    field = ".".join(str(part) for part in problem["loc"]) or "record"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if problem["type"] == "value_error" and not problem["loc"]:
        return f"{plain(problem['msg'])}{more}"
    if problem["type"] == "missing":
        return f"{field}: is missing{more}"
    return f"{field}: {_lower(plain(problem['msg']))} (got {_short(problem['input'])}){more}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else text[:_VALUE_CHARACTERS] + "…"
