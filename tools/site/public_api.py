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
    ("In the trainer", ("gravac_agent", "gravac_observe", "gravac.optim")),
    ("Client of the controller", ("gravac_controller",)),
    ("Traces and replay", ("gravac.traces", "gravac.replay", "gravac.testing", "gravac.fold")),
    ("What if", ("gravac.predict",)),
    ("Policies and signals", ("gravac.policies", "gravac.signals")),
    ("Compression", ("gravac.compressors", "gravac.memories", "gravac.aggregators", "gravac.collectives")),
    ("Gradient estimators", ("gravac_lab.estimators",)),
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
    """Public names without a docstring: those in ``__all__``, the methods and properties of the classes among them, and
    what the modules among them export."""
    module = import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        if not _doc(module, name):
            yield f"{package}.{name}"
        if inspect.ismodule(thing):
            yield from (
                f"{package}.{name}.{inner}" for inner in _inner(module, thing) if not _doc(thing, inner)
            )
        elif inspect.isclass(thing):
            missing = (member for member in _members(thing) if not inspect.getdoc(getattr(thing, member)))
            yield from (f"{package}.{name}.{member}" for member in missing)


def public_name(path: str, package: str = "gravac") -> str | None:
    """The name in ``__all__`` of an object of ours that has another path too; None for any other path."""
    module, _, name = path.rpartition(".")
    if not module.startswith(package):
        return None
    try:
        thing = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None
    public = import_module(package)
    found = (one for one in public.__all__ if getattr(public, one) is thing)
    return next((f"{package}.{one}" for one in found if f"{package}.{one}" != path), None)


def _group(thing: Any, package: str) -> str:
    home = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None) or package
    for title, prefixes in GROUPS:
        if any(not prefix or home == prefix or home.startswith(f"{prefix}.") for prefix in prefixes):
            return title
    raise AssertionError("the last group takes everything")


def _overview(module: ModuleType, names: list[str]) -> str:
    rows = [f"| {{py:obj}}`{module.__name__}.{name}` | {_summary(module, name)} |" for name in names]
    return "\n".join(("| Name | What it is |", "|---|---|", *rows))


def _entry(module: ModuleType, name: str) -> str:
    thing, path = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.ismodule(thing):
        leave = _directive(".. py:currentmodule:: None")  # else the next names would be documented inside it
        if thing.__name__ != path:  # of another package, so it cannot be imported under this name
            return _directive(f".. py:module:: {path}", "", _doc(module, name).replace("\n", "\n   ")) + leave
        return _directive(f".. automodule:: {path}") + _exports(thing, _inner(module, thing)) + leave
    if inspect.isclass(thing):
        fields = _fields(thing)
        options = [f":members: {', '.join(_members(thing))}"] if _members(thing) else []
        if issubclass(thing, BaseException | Enum):
            options.append(":show-inheritance:")
        # The signature of a record repeats its fields, without what they mean.
        return _directive(f".. autoclass:: {path}{'()' if fields else ''}", *options) + fields
    if inspect.isroutine(thing):
        return _directive(f".. autofunction:: {path}")
    return _directive(f".. py:data:: {path}", "", _doc(module, name).replace("\n", "\n   "))


def _exports(module: ModuleType, names: list[str]) -> str:
    """What a public module exports: a table of all, then the functions in full."""
    if not names:
        return ""
    rows = [f"| `{module.__name__}.{name}` | {_summary(module, name)} |" for name in names]
    functions = [_entry(module, name) for name in names if inspect.isroutine(getattr(module, name))]
    return "\n" + "\n".join(("| Name | What it is |", "|---|---|", *rows, "", *functions)) + "\n"


def _directive(first: str, *options: str) -> str:
    return "```{eval-rst}\n" + "\n   ".join((first, *options)) + "\n```\n"


def _inner(module: ModuleType, inner: ModuleType) -> list[str]:
    """What a public module exports by its ``__all__``, except what the package itself exports and constants that the
    module does not describe, such as aliases of types."""
    outer = [getattr(module, name) for name in module.__all__]
    found = []
    for name in getattr(inner, "__all__", ()):
        thing = getattr(inner, name)
        described = inspect.isclass(thing) or inspect.isroutine(thing) or _doc(inner, name)
        if described and not any(thing is one for one in outer):
            found.append(name)
    return found


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
            rows[name] = f"| `{name}` | `{_cell(_type(node.annotation))}` | {_prose(meaning)} |"
    if not rows:
        return ""
    return "\n" + "\n".join(("| Field | Type | Meaning |", "|---|---|---|", *rows.values())) + "\n"


def _type(annotation: ast.expr) -> str:
    """An annotation as text; of ``Annotated[…]`` the type alone."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return ast.unparse(annotation.slice.elts[0])
    return ast.unparse(annotation)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Prose of a docstring as Markdown in a table."""
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


def _doc(module: ModuleType, name: str) -> str:
    """The docstring of a name in a module; of a constant, the string below its definition."""
    thing = getattr(module, name)
    if name == "__version__":
        return f"The version of the package: ``{thing}``."
    if inspect.isclass(thing):
        return _own_doc(thing)
    if inspect.ismodule(thing) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    return _data_doc(module.__name__, name)


def _own_doc(thing: type) -> str:
    """The docstring written for this class: not inherited, and not the signature that a dataclass gets."""
    doc = vars(thing).get("__doc__") or ""
    if dataclasses.is_dataclass(thing) and doc.startswith(f"{thing.__name__}("):
        return ""
    if issubclass(thing, BaseModel) and doc == BaseModel.__doc__:
        return ""
    return inspect.cleandoc(doc)


def _data_doc(module: str, name: str) -> str:
    """The string below the definition of a constant, in the module that defines it."""
    body = ast.parse(inspect.getsource(import_module(module))).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and node.module and name in {name.name for name in node.names}:
            return _data_doc(node.module, name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            text = following.value if isinstance(following, ast.Expr) else None
            return inspect.cleandoc(str(text.value)) if isinstance(text, ast.Constant) else ""
    return ""


def _summary(module: ModuleType, name: str) -> str:
    """The first paragraph of its docstring, on one line."""
    return _prose(_doc(module, name).partition("\n\n")[0])
