"""Images of Latin letters and digits in Google's Noto fonts, split by font. Rendered once and kept in the cache."""

import string
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch

from gravac_lab.tasks.data.cache import cached
from gravac_lab.tasks.data.images import Images
from gravac_lab.tasks.recipe import TaskError

FONTS = Path("/usr/share/fonts/truetype/noto")
TRAIN = ("NotoSans", "NotoSansDisplay", "NotoSansMono", "NotoSerif")
HELDOUT = ("NotoSerifDisplay", "NotoMono")
"""Families, each with all its styles. No held-out family is trained on, in any style."""
CHARACTERS = string.digits + string.ascii_letters
"""The classes: digits and Latin letters."""
SIDE = 28
"""Pixels."""
TRAIN_SIZES, HELDOUT_SIZES = (20, 22, 24), (22,)
"""Size of the font in pixels."""


def load(fonts: Path | None = None, within: Path | None = None) -> Images:
    """Render the characters in all fonts, or read them from the cache.

    Args:
        fonts: Folder of the fonts; None: ``FONTS``.
        within: Folder of the cache; None: the user's.

    Raises:
        TaskError: The fonts or matplotlib are missing.
    """
    folder = FONTS if fonts is None else fonts
    parts = [_files(folder, families) for families in (TRAIN, HELDOUT)]
    sizes = (TRAIN_SIZES, HELDOUT_SIZES)
    seen = [(path.name, path.stat().st_size) for part in parts for path in part]
    key = f"{seen} {CHARACTERS} {SIDE} {sizes}"
    pieces = cached(
        "glyphs.images", key, lambda: [_render(*each) for each in zip(parts, sizes, strict=True)], within
    )
    train, heldout = (
        torch.frombuffer(bytearray(piece), dtype=torch.uint8).view(-1, 1, SIDE, SIDE) for piece in pieces
    )
    classes = [
        torch.arange(len(CHARACTERS), dtype=torch.int64).repeat(len(images) // len(CHARACTERS))
        for images in (train, heldout)
    ]
    # Ranks have every n-th image: in the order of the alphabet, some would never see some letters.
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return Images(
        source=f"letters of {sum(map(len, parts))} Noto fonts, by font",
        train=train[order],
        train_classes=classes[0][order],
        heldout_images=heldout,
        heldout_classes=classes[1],
        classes=len(CHARACTERS),
        shift=2,
    )


@lru_cache(1)
def installed() -> Images:
    """The images of the installed fonts; ``load`` for those who ask more than once."""
    return load()


def are_installed() -> bool:
    """Whether the fonts and matplotlib, which renders them, are installed."""
    fonts = all(any(FONTS.glob(f"{family}-*.ttf")) for family in (*TRAIN, *HELDOUT))
    return fonts and find_spec("matplotlib") is not None


def _files(folder: Path, families: Iterable[str]) -> list[Path]:
    """The fonts of the families, each of which must be there."""
    found = []
    for family in families:
        styles = sorted(folder.glob(f"{family}-*.ttf"))
        if not styles:
            raise TaskError(
                f"the glyphs are rendered from {folder / family}-*.ttf, which are missing: apt-get install "
                "fonts-noto-core fonts-noto-mono; or take images=digits"
            )
        found += styles
    return found


def _render(fonts: list[Path], sizes: Iterable[int]) -> bytes:
    """Draw every character in each font and size: white on black, centered, ``SIDE`` x ``SIDE`` bytes each."""
    try:
        from matplotlib.ft2font import FT2Font
    except ImportError:
        raise TaskError(
            "the glyphs are rendered by matplotlib, which is not installed: pip install 'gravac[plots]'"
        ) from None
    images = bytearray()
    for path in fonts:
        font = FT2Font(str(path))
        for size in sizes:
            font.set_size(size, 72)
            for character in CHARACTERS:
                font.set_text(character)
                font.draw_glyphs_to_bitmap()
                drawn = torch.tensor(font.get_image().tolist(), dtype=torch.uint8)
                height, width = (min(extent, SIDE) for extent in drawn.shape)
                top, left = (SIDE - height) // 2, (SIDE - width) // 2
                image = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
                image[top : top + height, left : left + width] = drawn[:height, :width]
                images += bytes(image.flatten().tolist())
    return bytes(images)
