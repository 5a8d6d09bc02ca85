"""The members of the registries of codecs and collectives, as tests are parametrized by them.

Nothing here raises while tests are collected. A member that cannot be built keeps its tests, and each of them fails
with the member's own error, so one wrong ``examples`` never hides the tests of the others.
"""

from gravac.collectives import COLLECTIVES, Gather
from gravac.compressors import COMPRESSORS, Compressor, build


def texts() -> list[str]:
    """Every codec by its defaults and by each of its examples, sorted by name."""
    return [
        text
        for name, codec in sorted(COMPRESSORS.items())
        for text in (name, *(f"{name}:{example}" for example in codec.examples))
    ]


def built(among: list[str]) -> dict[str, Compressor]:
    """The codecs of these texts, without those that cannot be built."""
    found = {}
    for text in among:
        try:
            found[text] = build(text)
        except Exception:  # test_it_can_be_built reports it
            continue
    return found


def having(trait: str, among: list[str], value: bool = True) -> list[str]:
    """The texts whose codecs have a trait, or with ``value`` False, have it not."""
    return [text for text, codec in built(among).items() if getattr(codec.traits, trait) is value]


def ways(*codecs: str, sends_all: bool | None = None) -> list[str]:
    """Every collective, by its defaults and by each of its examples, with the codecs that fit: ``topk by shared``.

    A codec alone gathers, so the gather is left out. With ``sends_all``, only collectives that say so or do not.
    """
    return [
        f"{codec} by {way}"
        for name, kind in COLLECTIVES.items()
        if kind is not Gather and sends_all in (None, kind.sends_all)
        for way in (name, *(f"{name}:{example}" for example in kind.examples))
        for codec, fitting in built(list(codecs)).items()
        if kind.fits(fitting)
    ]


def choices(codec: str) -> str:
    """The collectives that fit a codec, as an error lists them."""
    fitting = (name for name, kind in COLLECTIVES.items() if kind.fits(build(codec)))
    return f"choose {', '.join(fitting)} or auto"
