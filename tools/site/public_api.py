"""The Python reference: every name in a package's ``__all__``, grouped by where it is defined."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any

from pydantic import BaseModel

GROUPS = (
    ("In the trainer", ("gravac_agent",)),
    ("Client of the controller", ("gravac_controller",)),
    ("Traces and replay", ("gravac.traces", "gravac.replay", "gravac.testing", "gravac.fold")),
    ("What if", ("gravac.whatif",)),
    ("Policies and signals", ("gravac.policies", "gravac.signals")),
    ("Compression", ("gravac.compressors", "gravac.memories", "gravac.aggregators", "gravac.collectives")),
    ("Gradient estimators", ("gravac.estimators",)),
    ("Records", ("gravac.protocol",)),
    ("Everything else", ("",)),
)
"""Headings, and the modules whose objects belong under each. The first that matches counts."""

FOREIGN = ("abc", "builtins", "enum", "pydantic", "pydantic_settings", "typing", "torch")
"""Members inherited from here are not documented here."""


def page(package: str) -> str:
    """Markdown: a section for each group of public names, with autodoc's directive for each name."""
    module = import_module(package)
    grouped: dict[str, list[str]] = {title: [] for title, _ in GROUPS}
    for name in sorted(module.__all__, key=str.lower):
        grouped[_group(getattr(module, name), package)].append(name)
    parts = []
    for title, names in grouped.items():
        if names:
            parts.append(f"## {title}\n\n{_overview(module, names)}\n")
            parts += [_entry(module, name) for name in names]
    return "\n".join(parts)


def undocumented(package: str) -> Iterator[str]:
    """Public names without a docstring: those in ``__all__``, the methods and properties of classes among them, and
    the same of modules among them."""
    module = import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        path = f"{package}.{name}"
        if inspect.ismodule(thing):
            if not inspect.getdoc(thing):
                yield path
            yield from (
                f"{path}.{inner}" for inner in _inner(module, thing) if not _summary(getattr(thing, inner))
            )
        elif inspect.isclass(thing):
            if not _own_doc(thing):
                yield path
            for member in _members(thing):
                if not inspect.getdoc(getattr(thing, member)):
                    yield f"{path}.{member}"
        elif callable(thing) and not _summary(thing):
            yield path


def _group(thing: Any, package: str) -> str:
    home = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None) or package
    for title, prefixes in GROUPS:
        if any(not prefix or home == prefix or home.startswith(f"{prefix}.") for prefix in prefixes):
            return title
    raise AssertionError("the last group takes everything")


def _overview(module: ModuleType, names: list[str]) -> str:
    rows = [f"| {{py:obj}}`{module.__name__}.{name}` | {_summary(getattr(module, name))} |" for name in names]
    return "\n".join(("| Name | What it is |", "|---|---|", *rows))


def _entry(module: ModuleType, name: str) -> str:
    thing, path = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.ismodule(thing):
        inner = [_entry(thing, one) for one in _inner(module, thing)]
        return "\n".join([_directive(f".. automodule:: {path}"), *inner])
    if inspect.isclass(thing):
        members = _members(thing)
        options = [f":members: {', '.join(members)}"] if members else []
        if issubclass(thing, BaseException | Enum):
            options.append(":show-inheritance:")
        return _directive(f".. autoclass:: {path}", *options) + _fields(thing)
    return _directive(f".. {'autofunction' if inspect.isroutine(thing) else 'autodata'}:: {path}")


def _directive(first: str, *options: str) -> str:
    return "```{eval-rst}\n" + "\n   ".join((first, *options)) + "\n```\n"


def _inner(module: ModuleType, inner: ModuleType) -> list[str]:
    """What a public module exports by its ``__all__``, without what the package itself exports."""
    outer = [getattr(module, name) for name in module.__all__]
    names = getattr(inner, "__all__", ())
    return [name for name in names if not any(getattr(inner, name) is thing for thing in outer)]


def _fields(thing: type) -> str:
    """A table of the fields of a record or dataclass, with what the source says beside each or below it."""
    if not (issubclass(thing, BaseModel) or dataclasses.is_dataclass(thing)):
        return ""
    rows: dict[str, str] = {}
    for owner in reversed(thing.__mro__):
        if not _is_ours(owner):
            continue
        lines = inspect.getsource(owner).splitlines()
        (definition,) = ast.parse(textwrap.dedent("\n".join(lines))).body
        assert isinstance(definition, ast.ClassDef)
        for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            name = node.target.id
            if name.startswith("_") or "ClassVar" in ast.unparse(node.annotation):
                continue
            assert node.end_lineno is not None
            meaning = lines[node.end_lineno - 1].partition("  # ")[2]
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                meaning = str(following.value.value)
            field = thing.model_fields.get(name) if issubclass(thing, BaseModel) else None
            meaning = (field.description if field else None) or meaning
            rows[name] = f"| `{name}` | `{_cell(ast.unparse(node.annotation))}` | {_prose(meaning)} |"
    if not rows:
        return ""
    return "\n" + "\n".join(("| Field | Type | Meaning |", "|---|---|---|", *rows.values())) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    return _cell(text).replace("``", "`").replace("*", "\\*")


def _members(thing: type) -> list[str]:
    """Public methods and properties, inherited ones too where they come from one of our packages."""
    found: dict[str, None] = {}
    for owner in thing.__mro__:
        if _is_ours(owner):
            names = (name for name, member in vars(owner).items() if _is_behavior(member))
            found.update(dict.fromkeys(name for name in names if not name.startswith("_")))
    return list(found)


def _is_ours(owner: type) -> bool:
    return owner.__module__.partition(".")[0] not in FOREIGN


def _is_behavior(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


def _own_doc(thing: type) -> str | None:
    """The docstring written for this class: not inherited, and not the signature that a dataclass gets."""
    doc = vars(thing).get("__doc__")
    if doc is None or (dataclasses.is_dataclass(thing) and doc.startswith(f"{thing.__name__}(")):
        return None
    if issubclass(thing, BaseModel) and doc == BaseModel.__doc__:
        return None
    return str(doc)


def _summary(thing: Any) -> str:
    """The first paragraph of its docstring, on one line."""
    if isinstance(thing, str | int | float):
        return f"`{thing!r}`"
    doc = _own_doc(thing) if inspect.isclass(thing) else inspect.getdoc(thing)
    first = inspect.cleandoc(doc or "").partition("\n\n")[0]
    return _prose(first)
