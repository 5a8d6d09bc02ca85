"""Texts of codecs and plans are taken apart alike everywhere."""

from gravac import codec_text

STACK = "topk:rows=2+nearest:levels=15,coding=huffman"


def test_the_parts_of_a_stack() -> None:
    assert codec_text.parts_of(STACK) == ("topk:rows=2", "nearest:levels=15,coding=huffman")
    assert codec_text.selector_of(STACK) == "topk:rows=2"
    assert codec_text.values_of(STACK) == "nearest:levels=15,coding=huffman"
    assert codec_text.name_of(STACK) == "topk+nearest"
    assert codec_text.split_settings("topk+nearest:levels=15") == ("topk+nearest", "levels=15")
    assert codec_text.uncoded(STACK) == "topk:rows=2+nearest:levels=15"


def test_a_codec_that_is_no_stack() -> None:
    assert codec_text.parts_of("bf16") == ("bf16",)
    assert (codec_text.selector_of("bf16"), codec_text.values_of("bf16")) == ("bf16", "")
    assert codec_text.split_settings("bf16") == ("bf16", "")
    assert codec_text.uncoded("bf16") == "bf16"


def test_plans() -> None:
    """In a list of plans, settings are separated by semicolons."""
    assert codec_text.split_plan(" qsgd:bits=4;block=64@8") == ("qsgd:bits=4,block=64", "8")
    assert codec_text.split_plan("bf16") == ("bf16", None)
    assert codec_text.split_plan("topk@") == ("topk", ""), "a CF was begun, which is another error than none"
