"""The files of the live page, read once. They are looked up by name, so no path from outside meets the disk."""

import mimetypes
from functools import cache
from pathlib import Path
from typing import Literal

from starlette.responses import Response

from gravac_controller.api.answers import kept_answer
from gravac_controller.api.problems import ApiError
from gravac_controller.page.bundle import MAIN, bundle

STATIC = Path(__file__).parent / "static"
SCRIPT = "page.js"
"""All modules of the page as one script, made here."""
Mode = Literal["live", "replay"]
ICON = "icon.svg"
ASK_AGAIN, FOR_A_DAY = "private, no-cache", "private, max-age=86400"
"""How browsers may keep files: to use again when the controller says so; and for a day without asking. Chromium wants
the icon anew whenever the address changes, so a hundred times while a chart is panned."""
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class PageFiles:
    """Contents and media types by name below ``folder``."""

    def __init__(self, folder: Path = STATIC) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        self._files = {
            path.relative_to(folder).as_posix(): (path.read_bytes(), _kind(path)) for path in paths
        }
        if MAIN in self._files:
            self._files[SCRIPT] = bundle(folder).encode(), KINDS[".js"]

    def file(self, name: str, known: str | None = None) -> Response:
        """One file, or 304 where the If-None-Match header that came names it as it is. Raises ApiError 404."""
        found = self._files.get(name)
        if found is None:
            raise ApiError(404, "no such file of the live page", reason="not_found")
        keeping = FOR_A_DAY if name == ICON else ASK_AGAIN
        return kept_answer(*found, keeping, known)

    def page(self, mode: Mode = "live") -> Response:
        """The page itself, to follow a job or to look back at a trace. Raises ApiError 404 where it was left out."""
        found = self._files.get("index.html")
        if found is None:
            raise ApiError(404, "the live page is not part of this installation; the API is under /v1/jobs")
        text = found[0].decode()
        return Response(text.replace('data-mode="live"', f'data-mode="{mode}"'), media_type=found[1])


@cache
def shipped() -> PageFiles:
    """Those of this installation, the same for every application of a process."""
    return PageFiles()


def _kind(path: Path) -> str:
    return KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
