"""The files of the live page, read once. They are looked up by name, so no path of a request reaches the disk.

The page's modules are bundled into one classic script: one request instead of fifty. It also runs in a page that is
opened from a file, which has no origin and so cannot import modules.
"""

import mimetypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

STATIC = Path(__file__).parent / "static"
MAIN = "main.js"
SCRIPT = "page.js"
"""Name of the bundled script."""
ICON = "icon.svg"
REVALIDATE, FOR_A_DAY = "private, no-cache", "private, max-age=86400"
"""How browsers cache files: asking each time whether they changed, or for a day without asking. Chromium fetches the
icon whenever the address changes, a hundred times while a chart is panned."""
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
Mode = Literal["live", "replay"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|class|const) ([\w$]+)", re.MULTILINE)
_COMMENT = re.compile(r"^ *(?://.*|/\*\*(?:.|\n)*?\*/)\n", re.MULTILINE)
"""Lines of a comment, which browsers need not load."""
_LEFT = re.compile(r"^(?:import|export)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, and how browsers may cache it."""

    body: bytes
    media_type: str
    cache_control: str


class PageFiles:
    """The files below ``folder``, by name."""

    def __init__(self, folder: Path = STATIC) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        self._files = {
            path.relative_to(folder).as_posix(): _read(path, FOR_A_DAY if path.name == ICON else REVALIDATE)
            for path in paths
        }
        if MAIN in self._files:
            self._files[SCRIPT] = PageFile(bundle(folder).encode(), MEDIA_TYPES[".js"], REVALIDATE)

    def get(self, name: str) -> PageFile | None:
        """Return a file, None where there is none of that name."""
        return self._files.get(name)

    def page(self, mode: Mode = "live") -> str | None:
        """Return the HTML of the page, to follow a job or to replay a trace; None where it was not installed."""
        found = self._files.get("index.html")
        return (
            None if found is None else found.body.decode().replace('data-mode="live"', f'data-mode="{mode}"')
        )


@cache
def page_files() -> PageFiles:
    """Return the files of this installation, read once per process."""
    return PageFiles()


def _read(path: Path, cache_control: str) -> PageFile:
    media_type = MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    return PageFile(path.read_bytes(), media_type, cache_control)


class CannotBundle(ValueError):
    """A module uses a form of import or export that the bundler does not support; the message names it."""


def bundle(folder: Path) -> str:
    """Return one script that does what ``main.js`` in ``folder`` does: each module is a function that runs once.

    Raises CannotBundle for circular imports, and for forms of import or export that the page does not use.
    """
    ordered: list[str] = []
    _visit(MAIN, folder, ordered, ())
    return '"use strict";\nconst modules = {};\n' + "".join(_wrapped(name, folder) for name in ordered)


def _visit(name: str, folder: Path, ordered: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise CannotBundle(f"{' imports '.join([*above, name])}: in a circle")
    if name in ordered:
        return
    for _, other in _IMPORT.findall((folder / name).read_text(encoding="utf-8")):
        _visit(other, folder, ordered, (*above, name))
    ordered.append(name)


def _wrapped(name: str, folder: Path) -> str:
    """Return a module as ``modules["name"]``, an object of its exports."""
    text = _COMMENT.sub("", _IMPORT.sub(_fetched, (folder / name).read_text(encoding="utf-8")))
    exported = [found[1] for found in _EXPORT.findall(text)]
    text = _EXPORT.sub(r"\1 \2", text)
    left = _LEFT.search(text)
    if left is not None:
        raise CannotBundle(f"{name}: {text[left.start() :].partition(chr(10))[0]!r} is not supported")
    return f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {", ".join(exported)} }};\n}})();\n'


def _fetched(found: re.Match[str]) -> str:
    names = found[1].replace(" as ", ": ")
    return f'const {{{names}}} = modules["{found[2]}"];\n'
