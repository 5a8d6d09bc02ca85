"""Codecs by name and settings; wrong ones are named."""

import runpy
from pathlib import Path

import pytest
import torch

from gravac.compressors import COMPRESSORS, build
from gravac.compressors.quantize.qsgd import QSGD
from tests.support.maths import members


def test_settings() -> None:
    codec = build("qsgd:bits=4,norm=l2,block=64")
    assert isinstance(codec, QSGD)
    assert (codec.bits, codec.norm, codec.block) == (4, "l2", 64)
    assert [
        build("qsgd").wire_bytes(1024, cf, torch.float32) for cf in (1.0, 4.0, 5.0, 8.0, 9.0, 1000.0)
    ] == [
        1032,
        1032,
        520,
        520,
        392,
        264,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zip", "compressor='zip' is unknown; choose one of atomo, bernoulli"),
        ("topk:bits=3", "compressor='topk:bits=3' has no setting 'bits'; it has none"),
        ("qsgd:bits", "'bits' must be written setting=value"),
        ("qsgd:bits=4,bits=8", "setting 'bits' is given twice"),
        ("qsgd:bits=5", "qsgd: bits=5 must be one of 8, 4, 3, 2"),
        ("qsgd:norm=l1", "qsgd: norm='l1' must be l2 or linf"),
        ("qsgd:block=0", "qsgd: block=0 must be at least 1 element"),
        ("qsgd:block=many", "compressor='qsgd:block=many'"),
        ("nuqsgd:bits=8", "nuqsgd: bits=8 must be one of 4, 3, 2"),
        ("natural:bits=7", "natural: bits=7 must be 8 or 9"),
        ("terngrad:base3=perhaps", "terngrad: base3='perhaps' must be true or false"),
        ("terngrad-clipped:clip=0", "terngrad-clipped: clip=0 must be a positive number"),
        ("hardthreshold:threshold=-1", "hardthreshold: threshold=-1 must be positive and finite"),
        ("hardthreshold-warmup:steps=0", "hardthreshold-warmup: steps=0 must be at least 1"),
        ("dgc:sample=2", "dgc: sample=2 must be a share"),
        ("redsync:tolerance=1", "redsync: tolerance=1 must be between 0 and 1"),
        ("countsketch:rows=0", "countsketch: rows=0 must be at least 1"),
        ("countsketch-median:rows=2", "countsketch-median: rows=2 must be odd"),
        ("countsketch-heavy:hitters=0", "countsketch-heavy: hitters=0 must be at least 1"),
        ("dgc+int8", "dgc must be a selector of fixed size"),
        ("topk+svd", "svd must be a quantizer of fixed size"),
        ("topk+", "compressor='' is unknown"),
    ],
)
def test_wrong_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(text)
    assert message in str(error.value)


def test_every_member_says_where_it_comes_from() -> None:
    for name, codec in COMPRESSORS.items():
        assert codec.name == name
        assert build(name).source
        assert codec.__doc__
    with pytest.raises(ValueError, match="topk has no state, but 'a' was given"):
        build("topk").load_state_dict({"a": torch.ones(1)})


class WrongExamples(QSGD):
    """One of its examples is a setting that it refuses."""

    name = "wrong-examples"
    examples = ("bits=4", "bits=77")


def test_one_wrong_example_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The property suite still collects every other member; only the wrong text fails, with its own error."""
    monkeypatch.setitem(COMPRESSORS, WrongExamples.name, WrongExamples)
    texts = members.texts()
    wrong = "wrong-examples:bits=77"
    assert {wrong, "wrong-examples", "wrong-examples:bits=4", "topk"} <= set(texts)
    assert set(texts) - set(members.built(texts)) == {wrong}
    assert "wrong-examples:bits=4" in members.having("unbiased", texts)
    suite = runpy.run_path(str(Path(__file__).with_name("test_base.py")))  # what collecting it does
    assert suite["NAMES"] == texts
    suite["test_it_can_be_built"]("wrong-examples:bits=4")
    with pytest.raises(ValueError, match="bits=77 must be one of"):
        suite["test_it_can_be_built"](wrong)
