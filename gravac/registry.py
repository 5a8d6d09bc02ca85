"""Everything that is chosen by name: registries of classes, plugins that add to them, and ``name:setting=value`` texts.

Codecs, aggregators, memories, collectives, policies and estimators each have one ``Registry``. Other distributions add
members through entry points; CONTRIBUTING.md has an example.
"""

import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gravac import offers
from gravac.wording import did_you_mean, first_problem, validator_message

T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NUMBER = re.compile(r"[0-9.]+")
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_NUMBERS = {int, float, type(None)}
_SIZES = {
    "k",
    "cf",
    "ratio",
    "rate",
    "density",
    "sparsity",
    "fraction",
    "keep",
    "compression",
    "percent",
    "topk",
}
"""What users of other libraries call the size of what a codec sends."""
_LOADED: dict[str, EntryPoint] = {}
"""Plugins in use in this process, by entry point group and name."""


class PluginError(ValueError):
    """A plugin's member was asked for by name and cannot be used. The message names its distribution."""


class PluginWarning(UserWarning):
    """A plugin's member is left out of a list because it cannot be used."""


class Registry(MutableMapping[str, type[T]], Generic[T]):
    """Classes by their ``name``: gravac's own, then those of plugins.

    Plugins are looked up when a name is not gravac's own, and all are loaded when the names are listed. So importing
    gravac loads none, and one that is broken stops only those who ask for it by name.

    Args:
        what: What a member is, as settings and messages call it: ``compressor``.
        members: gravac's own classes.
        base: The class that every member derives from.
        group: Entry points of this group add members; None: no plugins.
        shares: A registry with the same name space, none of whose names may be used again.
    """

    def __init__(
        self,
        what: str,
        members: tuple[type[T], ...],
        *,
        base: type,
        group: str | None = None,
        shares: "Registry[Any] | None" = None,
    ) -> None:
        self.what, self.group, self._base = what, group, base
        self._own: dict[str, type[T]] = {}
        self._loaded: dict[str, type[T]] = {}
        self._plugins: dict[str, list[EntryPoint]] | None = None
        self._sibling = shares
        if shares is not None:
            shares._sibling = self
        for member in members:
            self.register(member)

    def register(self, member: type[T]) -> type[T]:
        """Add a class under its ``name`` and return it.

        Raises:
            ValueError: It is not derived from the registry's base class, or the name is taken.
        """
        self[getattr(member, "name", "")] = member
        return member

    def names(self) -> tuple[str, ...]:
        """Every name, sorted. Loads all plugins and warns of those that cannot be used."""
        return tuple(sorted(self))

    def find(self, name: str) -> type[T]:
        """The class of that name.

        Raises:
            ValueError: No such name, with the closest ones and all names; or its plugin is broken.
        """
        try:
            return self[name]
        except KeyError:
            raise self.unknown(name) from None

    def build(self, text: str, *arguments: object, changes: Mapping[str, Any] | None = None) -> T:
        """A new member from ``name`` or ``name:setting=value,setting=value``.

        Args:
            text: Name and settings.
            arguments: What its constructor takes before its settings.
            changes: Settings that replace those in the text.

        Raises:
            ValueError: The text cannot be read, or there is no such name, setting or value.
        """
        name, _, rest = (part.strip() for part in text.partition(":"))
        kind = self.find(name)
        if _NUMBER.fullmatch(rest):
            raise no_setting(self.what, text, rest, _settings(kind))
        settings = {**split(text, self.what)[1], **(changes or {})}
        if hasattr(kind, "Settings"):
            return kind(*arguments, **settings)
        return construct(kind, text, settings, *arguments, what=self.what)

    def unknown(self, name: str, *more: str) -> ValueError:
        """The error for a name that does not exist. ``more``: names that are valid besides those registered."""
        names = sorted({*more, *self.names()})
        return ValueError(
            f"{self.what}={name!r} is unknown{did_you_mean(name, names)}; choose one of {', '.join(names)}"
        )

    def is_plugins(self, name: str) -> bool:
        """Return whether the name is a loaded plugin's, and not gravac's own."""
        return name in self._loaded

    def __getitem__(self, name: str) -> type[T]:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            if self.group is None or not _NAME.fullmatch(name):
                raise KeyError(name)
            if self._sibling is not None and name in self._sibling._own:
                raise KeyError(name)
            found = self._entries().get(name)
            if found is None:
                raise KeyError(name)
            self._loaded[name] = self._load(name, found)
        return self._loaded[name]

    def __setitem__(self, name: str, member: type[T]) -> None:
        self._check(name, member)
        if self._taken(name):
            raise ValueError(f"{self.what}={name!r} is registered already; give the new one another name")
        self._own[name] = member
        offers.register(name, member)

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self._usable))

    def __len__(self) -> int:
        return len(self._own) + len(self._usable)

    @cached_property
    def _usable(self) -> tuple[str, ...]:
        """Names of the plugins' members. Loads them all, and warns of each that cannot be used."""
        usable = []
        for name, found in self._entries().items():
            try:
                if self._taken(name) or not _NAME.fullmatch(name):
                    why = "is gravac's own" if self._taken(name) else "must be made of a-z, 0-9, _ and -"
                    raise PluginError(
                        f"the name {name!r} {why}, and not for {_described(found)}; rename it there"
                    )
                self[name]
            except PluginError as error:
                warnings.warn(f"a {self.what} is left out: {error}", PluginWarning, stacklevel=4)
            else:
                usable.append(name)
        return tuple(usable)

    def _taken(self, name: str) -> bool:
        return name in self._own or (self._sibling is not None and name in self._sibling._own)

    def _check(self, name: str, member: Any) -> None:
        if not (isinstance(member, type) and issubclass(member, self._base)):
            raise ValueError(f"{self.what}={name!r}: {member!r} is not a subclass of {self._base.__name__}")
        if getattr(member, "name", None) != name:
            raise ValueError(f"{self.what}={name!r}: {member.__name__}.name must be {name!r} too")

    def _entries(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name. More than one: several distributions use the name."""
        if self._plugins is None:
            self._plugins = {}
            for entry in entry_points(group=self.group) if self.group else ():
                self._plugins.setdefault(entry.name, []).append(entry)
        return self._plugins

    def _load(self, name: str, found: list[EntryPoint]) -> type[T]:
        if len(found) > 1:
            raise PluginError(f"{self.what}={name!r} is in {_described(found)}; uninstall all but one")
        try:
            kind: type[T] = found[0].load()
            self._check(name, kind)
            _LOADED[f"{self.group}:{name}"] = found[0]
            offers.register(name, kind)
        except Exception as error:  # whatever a plugin's import raises
            raise PluginError(
                f"{self.what}={name!r} is in {_described(found)}, which cannot be used: "
                f"{type(error).__name__}: {error}; repair or uninstall it"
            ) from error
        return kind


def plugins(*texts: str) -> dict[str, str]:
    """Return distribution and version of each loaded plugin that ``texts`` name, by entry point group and name.

    Ranks compare it before the first step, so that all of them run the same code.
    """
    named = {name for text in texts for name in _NAME.findall(text)}
    return {key: _distribution(_LOADED[key]) for key in sorted(_LOADED) if key.partition(":")[2] in named}


def _distribution(entry: EntryPoint) -> str:
    """Name and version, ``theirs 1.2``."""
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _described(entries: list[EntryPoint]) -> str:
    return " and ".join(
        f"the plugin {_distribution(entry)} (entry point {entry.name} = {entry.value!r} of {entry.group})"
        for entry in entries
    )


def split(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of ``name:setting=value,setting=value``.

    Args:
        text: Values are JSON where they can be, else text; ``10/40/160`` is a list.
        what: What the text is for, as messages call it.

    Raises:
        ValueError: The text cannot be read.
    """
    name, _, rest = text.strip().partition(":")
    return name.strip(), parse_settings(rest, f"{what}={text!r}: ")


def parse_settings(rest: str, blame: str = "", *, as_texts: bool = False) -> dict[str, Any]:
    """The settings in ``setting=value,setting=value``, whose values are as written with ``as_texts``.

    Raises:
        ValueError: It begins with ``blame``.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        setting, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not setting or not value:
            raise ValueError(f"{blame}{part!r} must be written setting=value")
        if setting in found:
            raise ValueError(f"{blame}setting {setting!r} is given twice")
        if as_texts:
            found[setting] = value
        else:
            found[setting] = (
                [_value(item) for item in value.split("/") if item] if "/" in value else _value(value)
            )
    return found


def as_text(name: str, settings: BaseModel) -> str:
    """What ``split`` reads: the name, and every setting that is not at its default."""
    changed = settings.model_dump(exclude_defaults=True)
    return name + (
        ":" + ",".join(f"{key}={_text(value)}" for key, value in changed.items()) if changed else ""
    )


def check_settings(what: str, name: str, model: type[M], given: Mapping[str, Any]) -> M:
    """``given`` as a ``model``.

    Raises:
        ValueError: The message names the member, the setting, the value and what is allowed.
    """
    for setting in sorted(set(given) - set(model.model_fields)):
        raise no_setting(what, name, setting, model.model_fields)
    try:
        # Through JSON, so that a text, a trace and keywords in Python follow the same rules.
        return model.model_validate_json(json.dumps(given))
    except TypeError as error:
        raise ValueError(f"{what}={name!r}: settings must be numbers, texts or lists: {error}") from None
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        field = model.model_fields.get(str(where[0])) if where else None
        meaning = f". Meaning: {field.description}" if field and field.description else ""
        raise ValueError(f"{what}={name!r}, setting {first_problem(error)}{meaning}") from None


def construct(
    kind: Callable[..., R], text: str, settings: Mapping[str, Any], *arguments: object, what: str
) -> R:
    """``kind(*arguments, **settings)``. Its keyword-only parameters are its settings.

    Raises:
        ValueError: The message names the setting that it does not have, or whose value is wrong.
    """
    parameters, known = inspect.signature(kind).parameters, _settings(kind)
    for setting, value in settings.items():
        if setting not in known:
            raise no_setting(what, text, setting, known)
        if wrong := _mismatch(parameters[setting].annotation, value):
            raise ValueError(f"{what}={text!r}: {setting}={value!r}: {wrong}")
    try:
        return kind(*arguments, **settings)
    except TypeError as error:
        raise ValueError(f"{what}={text!r}: {error}") from None


def _settings(kind: Callable[..., object]) -> list[str]:
    """Names of a member's settings."""
    if hasattr(kind, "Settings"):
        return list(kind.Settings.model_fields)
    return [
        name for name, param in inspect.signature(kind).parameters.items() if param.kind is param.KEYWORD_ONLY
    ]


def no_setting(what: str, text: str, setting: str, known: Any) -> ValueError:
    """The error for a setting that a member does not have."""
    listed = ", ".join(known) or "none"
    size = (
        ": how much is sent is the CF, which the policy chooses, such as policy='static:cf=100' for a hundredth"
        if what == "compressor" and (setting.lower() in _SIZES or setting[0].isdigit())
        else ""
    )
    if _NUMBER.fullmatch(setting):  # a value without the name of its setting
        first = next(iter(known), None)
        meant = f" (did you mean '{text.partition(':')[0]}:{first}={setting}'?)" if first else ""
        return ValueError(
            f"{what}={text!r}: {setting!r} must be written setting=value{meant}; it has {listed}{size}"
        )
    return ValueError(
        f"{what}={text!r} has no setting {setting!r}{did_you_mean(setting, known)}; it has {listed}{size}"
    )


def _mismatch(annotation: Any, value: object) -> str:
    """Why ``value`` is not the number that a keyword is annotated as. Empty if it is, or if no number is expected."""
    if not set(get_args(annotation) or (annotation,)) <= _NUMBERS:
        return ""
    try:
        TypeAdapter(annotation, config=_STRICT).validate_python(value)
    except ValidationError as error:
        return validator_message(error.errors()[0]["msg"])
    return ""


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "/".join(map(_text, value)) + ("/" if len(value) == 1 else "")
    return value if isinstance(value, str) else json.dumps(value)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
