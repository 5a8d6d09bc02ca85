"""A codec that cannot be built is named at the start."""

import pytest

from gravac_agent.errors import SetupError
from gravac_agent.setup.agree import checked_codecs
from tests.support.scripted import Play, ScriptedPolicy


@pytest.mark.parametrize(
    ("codecs", "words"),
    [
        (("int4", "nope"), "may choose codec 'nope', which cannot be built: .*unknown"),
        (("qsgd:bits=99",), "may choose codec 'qsgd:bits=99', which cannot be built"),
        (("qsgd: bits=2",), "write 'qsgd:bits=2', without blanks"),
        (("int4", "int4"), "lists a codec twice: int4, int4"),
    ],
)
def test_a_codec_that_cannot_be_built_is_named_at_the_start(codecs: tuple[str, ...], words: str) -> None:
    policy = ScriptedPolicy(Play(None, 10.0), also=codecs)
    with pytest.raises(SetupError, match=words):
        checked_codecs(policy, "auto")
    assert checked_codecs(ScriptedPolicy(Play(None, 10.0), also=("int4",)), "auto") == ("int4",)
