"""Take a screenshot of the live page: ``python -m tools.pages.screenshot http://127.0.0.1:8756 page.png --dark``.

Uses the browser of the tests (Chromium through playwright, a development dependency). Requests to other hosts
are refused, as in the tests; errors of the page's console and violations of its content security policy are printed.
"""

import argparse
import sys
from pathlib import Path

from PIL import Image

from tools.harness.chromium import READY, open_tab

COLORS = 64
"""Colors of the picture. More would smooth the edges of letters, and take three times the bytes."""


def main() -> int:
    """Write the screenshot. Returns 1 where the page had errors."""
    parser = argparse.ArgumentParser(description="Take a screenshot of the live page.")
    parser.add_argument("url", help="address of the page, with #job=NAME for a certain job")
    parser.add_argument("out", type=Path, help="PNG to write")
    parser.add_argument("--dark", action="store_true", help="dark colors")
    parser.add_argument("--width", type=int, default=1400, help="window width in CSS pixels [1400]")
    parser.add_argument("--height", type=int, default=900, help="window height in CSS pixels [900]")
    parser.add_argument("--scale", type=float, default=2, help="device pixels per CSS pixel [2]")
    parser.add_argument("--window", action="store_true", help="only what fits the window, not the whole page")
    given = parser.parse_args()
    with open_tab(
        given.url,
        width=given.width,
        height=given.height,
        scheme="dark" if given.dark else "light",
        scale=given.scale,
    ) as tab:
        tab.wait(READY)
        tab.shoot(given.out, whole=not given.window)
        complaints = [*tab.errors, *tab.violations, *tab.foreign]
    with Image.open(given.out) as picture:
        few = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(given.out, optimize=True)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
