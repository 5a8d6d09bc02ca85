"""The Python reference: every name in a package's ``__all__``, grouped by where it is defined."""

import dataclasses
import inspect
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
    """Public names without a docstring: those in ``__all__``, and the methods and properties of classes among them."""
    module = import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        path = f"{package}.{name}"
        if inspect.isclass(thing):
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
    rows = [
        f"| [`{module.__name__}.{name}`](#{module.__name__}.{name}) | {_summary(getattr(module, name))} |"
        for name in names
    ]
    return "\n".join(("| Name | What it is |", "|---|---|", *rows))


def _entry(module: ModuleType, name: str) -> str:
    thing, path = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.isclass(thing):
        lines = [f".. autoclass:: {path}"]
        if issubclass(thing, BaseException | Enum):
            lines.append("   :show-inheritance:")
        members = _members(thing)
        if members:
            lines.append(f"   :members: {', '.join(members)}")
            lines.append("   :member-order: bysource")
    elif inspect.ismodule(thing):
        lines = [f".. automodule:: {thing.__name__}"]
    elif inspect.isroutine(thing):
        lines = [f".. autofunction:: {path}"]
    else:
        lines = [f".. autodata:: {path}"]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```\n"


def _members(thing: type) -> list[str]:
    """Public methods and properties, inherited ones too where they come from one of our packages."""
    found: dict[str, None] = {}
    for owner in thing.__mro__:
        if owner.__module__.partition(".")[0] in (
            "builtins",
            "pydantic",
            "pydantic_settings",
            "typing",
            "enum",
        ):
            continue
        for name, member in vars(owner).items():
            if not name.startswith("_") and _is_behavior(member):
                found.setdefault(name)
    return list(found)


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
    return " ".join(first.split()).replace("|", "\\|").replace("*", "\\*")
