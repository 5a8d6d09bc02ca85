"""Wrong settings: the message names the keyword or variable, the value, what is allowed, and the closest name."""

import pytest
from pydantic import TypeAdapter

from gravac.protocol import Choice
from gravac_agent import SetupError
from gravac_agent.settings import load


def message_for(**given: object) -> str:
    with pytest.raises(SetupError) as error:
        load(**given)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compressor": "tpok"}, "compressor='tpok' is unknown (did you mean 'topk'"),
        ({"compressor": "TopK+bf61"}, "compressor='TopK' is unknown (did you mean 'topk'"),
        ({"compressor": "powersgd:rnak=2"}, "no setting 'rnak' (did you mean 'rank'?)"),
        ({"memory": "residuals"}, "memory='residuals' is unknown (did you mean 'residual'"),
        ({"memory": "conef:bit=4"}, "no setting 'bit' (did you mean 'bits'?)"),
        ({"collective": "gahter"}, "(did you mean 'gather'?)"),
        ({"policy": "garvac"}, "policy='garvac' is unknown (did you mean 'gravac'?)"),
        ({"policy": "gravac:epsilom=0.3"}, "has no setting 'epsilom' (did you mean 'epsilon'?)"),
    ],
)
def test_the_message_suggests_the_closest_name(given: dict[str, object], message: str) -> None:
    assert message in message_for(**given)


def test_the_message_names_the_source_of_a_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDOW", "5o")
    assert message_for().startswith("GRAVAC_WINDOW='5o': Input should be a valid integer")
    assert message_for(window=0).startswith("window=0: ")  # the keyword overrides the variable
    monkeypatch.delenv("GRAVAC_WINDOW")
    monkeypatch.setenv("gravac_link", "fast")  # pydantic-settings takes names in either case
    assert message_for().startswith("gravac_link='fast': link='fast' is not a rate")
    monkeypatch.setenv("GRAVAC_COMPRESSOR", "zip")
    assert "; GRAVAC_COMPRESSOR='zip': compressor='zip' is unknown" in "; " + message_for()


def test_messages_have_no_words_of_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (
        {"compressor": "zip"},
        {"link": "fast"},
        {"controller": "x"},
        {"policy": "gravac:ladder=9/3"},
    ):
        assert "value error" not in message_for(**given).lower()


def test_the_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "swordfish" not in message_for(token=["swordfish"])


@pytest.mark.parametrize(
    ("field", "text", "cleaned"),
    [
        ("compressor", " topk ", "topk"),
        ("compressor", "topk + bf16\n", "topk+bf16"),
        ("compressor", "qsgd: bits = 4", "qsgd:bits=4"),
        ("memory", "\tconef:bits=4 ", "conef:bits=4"),
        ("collective", " gather ", "gather"),
    ],
)
def test_blanks_in_a_choice_are_removed(field: str, text: str, cleaned: str) -> None:
    """Records allow no blanks: registering the job would fail with a traceback."""
    assert getattr(load(**{field: text}), field) == cleaned
    TypeAdapter(Choice).validate_python(cleaned)


@pytest.mark.parametrize("text", ["", " ", "+", "+bf16", ":", "topk\x1b[2J", "tøpk", "topk:" + "a" * 200, 3])
@pytest.mark.parametrize("field", ["compressor", "memory"])
def test_odd_names(field: str, text: object) -> None:
    message = message_for(**{field: text})
    assert message.startswith(f"{field}=")
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("powersgd:rank=x", "rank='x': Input should be a valid integer"),
        ("powersgd:rank=1.5", "rank=1.5"),
        ("qsgd:block=1e999", "block=inf"),
        ("dgc:sample=NaN", "sample=nan: Input should be a finite number"),
        ("int8:block=true", "block=True: Input should be a valid integer"),
    ],
)
def test_values_of_the_wrong_type(text: str, words: str) -> None:
    assert f"compressor={text!r}: {words}" in message_for(compressor=text)


def test_misspelled_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDWO\x1b[2J", "7")
    with pytest.warns(UserWarning, match=r"GRAVAC_WINDWO\\x1b.* \(did you mean 'GRAVAC_WINDOW'\?\)") as found:
        load()
    assert str(found[0].message).isprintable()


def test_keywords_beat_environment_beats_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDOW", "7")
    monkeypatch.setenv("GRAVAC_POLICY", "static:cf=25")
    monkeypatch.setenv("GRAVAC_ENABLED", "false")
    settings = load(window=None)
    assert (settings.window, settings.policy, settings.enabled, settings.compressor) == (
        7,
        "static:cf=25",
        False,
        "topk+bf16",
    )
    assert load(window=9).window == 9


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": 0}, "window=0: Input should be greater than or equal to 1"),
        (
            {"collective": "ring"},
            "collective='ring' is unknown; choose one of all-reduce, auto, compressed-all-reduce",
        ),
        (
            {"compressor": "dgc", "collective": "shared"},
            "compressor='dgc' is not: choose gather, all-reduce or auto",
        ),
        ({"compressor": "zip"}, "compressor='zip' is unknown"),
        ({"memory": "ram"}, "memory='ram' is unknown"),
        ({"policy": "best"}, "policy='best' is unknown"),
        ({"policy": "static:cf=0.5"}, "cf"),
        ({"link": "fast"}, "link='fast' is not a rate"),
        ({"controller": "ftp://x"}, "must be auto, none, or an address"),
        ({"job": "a b"}, "job='a b'"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_settings_name_field_value_and_rule(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError) as error:
        load(**wrong)
    assert message in str(error.value)


def test_misspelt_variables_are_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDWO", "7")
    with pytest.warns(UserWarning, match="'GRAVAC_WINDWO' is not a setting"):
        load()
