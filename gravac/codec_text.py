"""Texts of codecs and plans, such as ``topk+nearest:levels=15`` and ``topk+bf16@100``, taken apart here alone. Pure.

    plan     = codec, or codec "@" CF
    codec    = part, or selector part "+" quantizer part
    part     = name, or name ":" settings
    settings = name "=" value, and more after commas

What a setting is, and what its value may be, is the registry's matter (``gravac.registry.split``).
"""

_HUFFMAN = "coding=huffman"
"""Changes the bytes of a codec and not its values, so that the CF of a plan stays that of its settings without it."""


def parts_of(codec: str) -> tuple[str, ...]:
    """Return the parts of a stack, with their settings; of another codec itself alone."""
    return tuple(codec.split("+"))


def selector_of(codec: str) -> str:
    """Return the first part, with its settings: the selector of a stack, or the whole codec."""
    return codec.partition("+")[0]


def values_of(codec: str) -> str:
    """Return what encodes the values of a stack, with its settings; empty: the codec is no stack."""
    return codec.partition("+")[2]


def split_settings(codec: str) -> tuple[str, str]:
    """Return what stands before the first settings, and the rest, which is empty where there are none.

    Returns:
        For ``topk+nearest:levels=15`` they are ``topk+nearest`` and ``levels=15``.
    """
    name, _, settings = codec.partition(":")
    return name, settings


def name_of(codec: str) -> str:
    """Return the names of all parts, without any settings, joined as in the text."""
    return "+".join(split_settings(part)[0] for part in parts_of(codec))


def is_coded(codec: str) -> bool:
    """Return whether its codes are Huffman's, which takes longer and sends fewer bytes of the same values."""
    return _HUFFMAN in codec


def uncoded(codec: str) -> str:
    """Return a codec that sends the same values without Huffman's code, if that is its last setting."""
    return codec.removesuffix(f",{_HUFFMAN}")


def split_plan(text: str) -> tuple[str, str | None]:
    """Return the codec of a plan with its settings, and its CF as text; None: it names none.

    In lists of plans, which commas separate, semicolons separate settings. They become commas.
    """
    codec, at, cf = text.partition("@")
    return codec.strip().replace(";", ","), cf if at else None
