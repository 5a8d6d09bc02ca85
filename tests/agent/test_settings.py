"""Wrong settings: the message names the keyword or the variable, the value, what is allowed, and what was meant."""

import pytest
from pydantic import TypeAdapter

from gravac.protocol.fields import Choice
from gravac_agent import SetupError
from gravac_agent.settings import load


def refusal(**given: object) -> str:
    with pytest.raises(SetupError) as error:
        load(**given)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"widow": 5}, "Agent has no keyword 'widow' (did you mean 'window'?)"),
        ({"widow": None}, "Agent has no keyword 'widow'"),
        ({"scalar": None}, "'scaler'"),
        ({"compresor": "topk", "memmory": "none"}, "'compresor' (did you mean 'compressor'?), 'memmory'"),
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
def test_what_was_meant(given: dict[str, object], message: str) -> None:
    assert message in refusal(**given)


def test_a_wrong_value_is_blamed_on_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDOW", "5o")
    assert refusal().startswith("GRAVAC_WINDOW='5o': Input should be a valid integer")
    assert refusal(window=0).startswith("window=0: ")  # the keyword wins, so it is the one to blame
    monkeypatch.delenv("GRAVAC_WINDOW")
    monkeypatch.setenv("gravac_link", "fast")  # pydantic-settings takes names in either case
    assert refusal().startswith("gravac_link='fast': link='fast' is not a rate")
    monkeypatch.setenv("GRAVAC_COMPRESSOR", "zip")
    assert "; GRAVAC_COMPRESSOR='zip': compressor='zip' is unknown" in "; " + refusal()


def test_no_words_of_pydantics_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (
        {"compressor": "zip"},
        {"link": "fast"},
        {"controller": "x"},
        {"policy": "gravac:ladder=9/3"},
    ):
        assert "value error" not in refusal(**given).lower()


def test_the_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "swordfish" not in refusal(token=["swordfish"])


@pytest.mark.parametrize(
    ("field", "text", "taken"),
    [
        ("compressor", " topk ", "topk"),
        ("compressor", "topk + bf16\n", "topk+bf16"),
        ("compressor", "qsgd: bits = 4", "qsgd:bits=4"),
        ("memory", "\tconef:bits=4 ", "conef:bits=4"),
        ("collective", " gather ", "gather"),
    ],
)
def test_blanks_around_a_choice_mean_nothing(field: str, text: str, taken: str) -> None:
    """And reach no record, whose names have none: registering the job failed with a raw traceback."""
    assert getattr(load(**{field: text}), field) == taken
    TypeAdapter(Choice).validate_python(taken)


@pytest.mark.parametrize("text", ["", " ", "+", "+bf16", ":", "topk\x1b[2J", "tøpk", "topk:" + "a" * 200, 3])
@pytest.mark.parametrize("field", ["compressor", "memory"])
def test_odd_names(field: str, text: object) -> None:
    message = refusal(**{field: text})
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
    assert f"compressor={text!r}: {words}" in refusal(compressor=text)


def test_misspelled_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC_WINDWO\x1b[2J", "7")
    with pytest.warns(UserWarning, match=r"GRAVAC_WINDWO\\x1b.* \(did you mean 'GRAVAC_WINDOW'\?\)") as found:
        load()
    assert str(found[0].message).isprintable()
