"""The members of the codec registry, as tests are parametrized by them.

Nothing here raises while tests are collected. A member that cannot be built keeps its tests, and each of them fails
with the member's own error, so one wrong ``examples`` never hides the tests of the others.
"""

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
