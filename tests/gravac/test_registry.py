"""Registries: names, plugins that add to them, and texts with settings."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
from pydantic import Field

from gravac import registry
from gravac.protocol import Record
from gravac.registry import PluginError, PluginWarning, Registry, as_text, check_settings, split


class Base:
    name = ""


class One(Base):
    name = "one"

    def __init__(self, *, size: int = 1) -> None:
        self.size = size


class Two(Base):
    name = "two"


class Other(Base):
    name = "other"


class Stranger:
    name = "stranger"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Registry[Base]]]:
    """Makes a registry of ``One``, with these entry points: name=value."""
    module = ModuleType("theirs_of_a_test")
    module.__dict__.update(Two=Two, Other=Other, Stranger=Stranger, One=One)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    asked: list[str] = []

    def make(*points: tuple[str, str], **more: object) -> Registry[Base]:
        def entry_points(group: str) -> list[EntryPoint]:
            asked.append(group)
            return [EntryPoint(name, f"{module.__name__}:{value}", group) for name, value in points]

        monkeypatch.setattr(registry, "entry_points", entry_points)
        found: Registry[Base] = Registry("part", (One,), base=Base, group="a.group", **more)  # type: ignore[arg-type]
        assert asked == [], "entry points are looked up when they are needed"
        found.find("one")
        assert asked == []
        return found

    yield make
    for key in [key for key in registry._LOADED if key.startswith("a.group:")]:
        del registry._LOADED[key]


def test_a_class_is_registered_under_its_name_once() -> None:
    parts: Registry[Base] = Registry("part", (One,), base=Base)
    assert parts.register(Two) is Two
    assert (parts.names(), len(parts), parts["two"]) == (("one", "two"), 2, Two)
    with pytest.raises(ValueError, match="part='two' is registered already"):
        parts.register(Two)
    with pytest.raises(ValueError, match=r"part='stranger': .* is not a subclass of Base"):
        parts.register(Stranger)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"part='three': Other.name must be 'three' too"):
        parts["three"] = Other
    del parts["two"]
    assert "two" not in parts


def test_wrong_names_and_settings_are_named() -> None:
    parts: Registry[Base] = Registry("part", (One, Two), base=Base)
    built = parts.build("one:size=3")
    assert isinstance(built, One)
    assert built.size == 3
    for text, words in (
        ("tow", "part='tow' is unknown .did you mean 'two'..; choose one of one, two"),
        ("one:sise=3", "part='one:sise=3' has no setting 'sise' .did you mean 'size'..; it has size"),
        ("one:size=x", "part='one:size=x': size='x': must be a whole number"),
        ("one:size", "part='one:size': 'size' must be written setting=value"),
        ("two:size=1", "part='two:size=1' has no setting 'size'; it has none"),
    ):
        with pytest.raises(ValueError, match=words):
            parts.build(text)


def test_plugins_are_found_when_a_name_is_not_gravacs_own(made: Callable[..., Registry[Base]]) -> None:
    parts = made(("two", "Two"))
    assert parts.find("two") is Two
    assert parts.names() == ("one", "two")
    assert registry.plugins("two+x:size=1") == {"a.group:two": "an unknown distribution"}
    assert registry.plugins("one", "twofold") == {}


def test_what_cannot_be_used_is_named_and_stops_nothing_else(made: Callable[..., Registry[Base]]) -> None:
    points = [("missing", "Absent"), ("stranger", "Stranger"), ("renamed", "Two"), ("one", "One")]
    parts = made(*points, ("two", "Two"), ("twice", "Other"), ("twice", "Other"), ("Bad name", "Other"))
    with pytest.warns(PluginWarning) as caught:
        names = parts.names()
    assert names == ("one", "two")
    assert len(parts) == 2
    said = [str(one.message) for one in caught]
    assert len(said) == 6, "each once"
    assert any("the name 'one' is gravac's own, and not for the plugin" in one for one in said)
    assert any("the name 'Bad name' must be made of" in one for one in said)
    assert parts.find("one") is One
    for name, words in (
        ("missing", r"entry point missing = 'theirs_of_a_test:Absent' of a.group.*AttributeError"),
        ("stranger", "is not a subclass of Base"),
        ("renamed", "Two.name must be 'renamed' too"),
        ("twice", "uninstall all but one"),
    ):
        with pytest.raises(PluginError, match=words):
            parts.find(name)


def test_registries_that_share_a_name_space_keep_it(made: Callable[..., Registry[Base]]) -> None:
    first = made(("other", "Other"))
    second: Registry[Base] = Registry("part", (Other,), base=Base, group="b.group", shares=first)
    with pytest.raises(ValueError, match="part='one' is registered already"):
        second.register(One)
    assert "one" not in second
    assert "other" not in first
    with pytest.warns(PluginWarning, match="'other' is gravac's own"):
        assert first.names() == ("one",)


class Sizes(Record):
    size: int = Field(1, ge=1, description="How large.")
    steps: tuple[float, ...] = ()


def test_texts() -> None:
    assert split(" x : size=2, steps=1/2.5 ,", "part") == ("x", {"size": 2, "steps": [1, 2.5]})
    assert split("x", "part") == ("x", {})
    assert as_text("x", Sizes(size=2)) == "x:size=2"
    assert as_text("x", Sizes()) == "x"
    assert as_text("x", Sizes(steps=(1.0, 2.5))) == "x:steps=1.0/2.5"
    assert check_settings("part", "x", Sizes, {"steps": [1, 2.5]}).steps == (1.0, 2.5)
    for given, words in (
        ({"size": 0}, "part='x', setting size: .*at least 1 .got 0.. Meaning: How large"),
        ({"sise": 0}, "part='x' has no setting 'sise' .did you mean 'size'..; it has size, steps"),
        ({"size": object()}, "part='x': settings must be numbers, texts or lists"),
    ):
        with pytest.raises(ValueError, match=words):
            check_settings("part", "x", Sizes, given)
