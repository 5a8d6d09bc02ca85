"""Wrong settings: the message names the keyword or variable, the value, what is allowed, and the closest name."""

import pytest
from pydantic import TypeAdapter

from gravac.collectives import COLLECTIVES
from gravac.protocol import Choice
from gravac_agent import SetupError
from gravac_agent.settings import load
from tests.support.maths.members import choices


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
    assert message_for().startswith("GRAVAC_WINDOW='5o': must be a whole number")
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
        ("powersgd:rank=x", "rank='x': must be a whole number"),
        ("powersgd:rank=1.5", "rank=1.5"),
        ("qsgd:block=1e999", "block=inf"),
        ("dgc:sample=NaN", "sample=nan: must be a finite number"),
        ("int8:block=true", "block=True: must be a whole number"),
    ],
)
def test_values_of_the_wrong_type(text: str, words: str) -> None:
    assert f"compressor={text!r}: {words}" in message_for(compressor=text)


@pytest.mark.parametrize("name", ["GRAVAC_WINDWO", "GRAVAC_WINDWO\x1b[2J", "gravac_windwo"])
def test_a_misspelled_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Three hours of training with the default would follow."""
    monkeypatch.setenv(name, "swordfish")
    message = message_for(window=7)
    assert message.startswith(
        f"environment variable {name!r} is not a setting of gravac (did you mean 'GRAVAC_WINDOW'?"
    )
    assert message.isprintable()
    assert "swordfish" not in message, "it may be a token"


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller reads some, and Kubernetes sets some in each pod beside a service of the name gravac."""
    for name in ("CONTROLLER_PORT", "SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8756_TCP_ADDR"):
        monkeypatch.setenv(f"GRAVAC_{name}", "tcp://10.0.0.1:8756")
    assert load().window == 50


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
        ({"window": 0}, "window=0: must be at least 1"),
        (
            {"collective": "ring"},
            f"collective='ring' is unknown; choose one of {', '.join(sorted((*COLLECTIVES, 'auto')))}",
        ),
        (
            {"compressor": "dgc", "collective": "shared"},
            f"compressor='dgc' is not: {choices('dgc')}",
        ),
        ({"compressor": "zip"}, "compressor='zip' is unknown"),
        ({"memory": "ram"}, "memory='ram' is unknown"),
        ({"policy": "best"}, "policy='best' is unknown"),
        ({"policy": "static:cf=0.5"}, "cf"),
        ({"link": "fast"}, "link='fast' is not a rate"),
        ({"controller": "ftp://x"}, "must be auto, none, or an address"),
        ({"job": "a b"}, "job='a b': write 1 to 64 letters, digits"),
        ({"controller": "localhost:8756"}, "(did you mean 'http://localhost:8756'?)"),
        ({"controller": "https://h:1"}, "(did you mean 'http://h:1'?)"),
        ({"compressor": 10}, "compressor=10: must be a text, write for example 'topk+bf16'"),
        (
            {"compressor": "topk:k=5"},
            "has no setting 'k'; it has none: how much is sent is the CF, which the policy",
        ),
        ({"compressor": "topk+bf16:ratio=0.01"}, "how much is sent is the CF"),
        (
            {"compressor": "randomk:10"},
            "'10' must be written setting=value; it has none: how much is sent is the CF",
        ),
        ({"policy": "static:100"}, "(did you mean 'static:cf=100'?); it has cf, warmup_windows, epsilon"),
        ({"window": True}, "window=True: must not be True or False, write for example 50"),
        ({"controller": False}, "controller=False: must not be True or False"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_settings_name_field_value_and_rule(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError) as error:
        load(**wrong)
    assert message in str(error.value)
