"""The page's modules as one classic script: one request in place of fifty.

It runs in a page opened from a file, too, which has no origin and so cannot import modules.
"""

import re
from pathlib import Path

MAIN = "main.js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*?|class|const) ([\w$]+)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b", re.MULTILINE)


class CannotBundle(ValueError):
    """A module is written in a way that this does not know; the message names it."""


def bundle(folder: Path) -> str:
    """One script that does what ``main.js`` in ``folder`` does: each module a function that is run once.

    Raises CannotBundle for imports in a circle, and for any form of import or export that the page does not use.
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
    """A module as ``modules["name"]``, an object of what it exports."""
    text = _IMPORT.sub(_fetched, (folder / name).read_text(encoding="utf-8"))
    exported = [found[1] for found in _EXPORT.findall(text)]
    text = _EXPORT.sub(r"\1 \2", text)
    left = _LEFT.search(text)
    if left is not None:
        raise CannotBundle(f"{name}: {text[left.start() :].partition(chr(10))[0]!r} is not known here")
    return f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {", ".join(exported)} }};\n}})();\n'


def _fetched(found: re.Match[str]) -> str:
    names = found[1].replace(" as ", ": ")
    return f'const {{{names}}} = modules["{found[2]}"];\n'
