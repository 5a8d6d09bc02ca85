"""Words of messages: safe to print, short enough, and with a hint for a misspelled name."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from gravac import offers
from gravac.policies.auto import plans as auto_plans
from gravac.protocol import Order
from gravac.wording import (
    did_you_mean,
    display_path,
    first_problem,
    format_cf,
    format_gain,
    format_number,
    format_percent,
    format_plan,
    plan_in_words,
    printable,
    shortened,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain — ε", "plain — ε"),
        ("two\nlines\tand\r", "two lines and "),
        ("\x1b[31mred\x07", "?[31mred?"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        ("left\u202eright", "left?right"),
    ],
)
def test_text_from_elsewhere_is_made_safe(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_long_text_is_cut() -> None:
    assert printable("x" * 300, 300) == "x" * 300
    assert printable("x" * 301, 300) == "x" * 300 + "…"
    assert shortened("abcd", 3) == "abc…"


def test_a_path_is_shown_as_a_user_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "here"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert display_path(inside / "runs" / "x") == os.path.join("runs", "x")
    assert display_path(tmp_path / "runs") == str(tmp_path / "runs")
    inside.rmdir()
    assert display_path("runs") == "runs", "the working directory is gone"


def test_close_names_are_suggested() -> None:
    assert did_you_mean("epsilom", ["epsilon", "window"]) == " (did you mean 'epsilon'?)"
    assert did_you_mean("GRAVAC_WINDWO", ["WINDOW"], prefix="GRAVAC_") == " (did you mean 'GRAVAC_WINDOW'?)"
    assert did_you_mean("nothing like it", ["epsilon"]) == ""


def test_the_first_problem_names_field_and_value() -> None:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"action": "pin", "cf": "x" * 200, "actor": "me"})
    assert first_problem(caught.value).startswith("cf: must be a number")
    assert len(first_problem(caught.value)) < 200
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"action": "dense", "cf": 3.0, "actor": "me"})
    assert first_problem(caught.value) == "cf must be given with pin, and with nothing else"
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"cf": 0.5})
    assert first_problem(caught.value) == "action: is missing (and 2 more)"


def test_numbers() -> None:
    assert [format_cf(value) for value in (1.0, 40.0, 2.5)] == ["dense", "CF 40", "CF 2.5"]
    assert [format_number(value) for value in (0.0, 0.1234, 12.34, 123456.7)] == [
        "0",
        "0.123",
        "12.3",
        "123457",
    ]
    assert [format_gain(value) for value in (0.456, 0.0123)] == ["0.46", "0.012"]
    assert [format_percent(value) for value in (0.05, 0.057, 0.5)] == ["5 %", "5.7 %", "50 %"]


@pytest.mark.parametrize(
    ("codec", "cf", "words"),
    [
        ("nearest:levels=39,coding=huffman", 5.7, "39 levels, Huffman"),
        ("nearest:levels=3", 17.3, "3 levels"),
        ("nearest:levels=2", 25.6, "signs"),
        ("dither-subtractive:coding=huffman,levels=3", 17.3, "3 levels, subtractive, Huffman"),
        ("topk+bf16", 100.0, "largest 1 %, 16 bits"),
        ("topk+twobit", 36.0, "largest 2.78 %, 2 bits"),
        ("twobit", 15.0, "2 bits"),
        ("topk", 400.0, "largest 0.25 %"),
        ("nearest:levels=3", 1.0, "dense"),
        ("nearest", 17.3, "nearest at CF 17.3"),
        ("nearest:levels=7,block=7", 10.1, "nearest:levels=7,block=7 at CF 10.1"),
        ("topk:levels=3", 10.0, "topk:levels=3 at CF 10"),
        ("powersgd", 100.0, "powersgd at CF 100"),
        ("their\x1b[31mcodec", 4.0, "their?[31mcodec at CF 4"),
    ],
)
def test_a_plan_in_plain_words(codec: str, cf: float, words: str) -> None:
    assert plan_in_words(codec, cf) == words


def test_every_plan_of_auto_has_short_words_of_its_own() -> None:
    plans = [(str(plan.codec), plan.cf) for plan in auto_plans.defaults()]
    plans += [
        (f"{name}:{settings}".rstrip(":"), cf)
        for name, offer in offers.own().items()
        for settings, cf in offer.listed.items()
    ]
    words = [plan_in_words(*plan) for plan in plans]
    assert len(set(words)) == len(words)
    assert max(map(len, words)) <= 30
    assert not [plan for plan, text in zip(plans, words, strict=True) if text == format_plan(*plan)]


def test_paths_are_those_one_would_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert display_path(inside / "runs" / "x") == "runs/x"
    assert display_path("runs") == "runs"
    assert display_path(tmp_path / "runs") == str(tmp_path / "runs")
