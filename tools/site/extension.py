"""A Sphinx extension: puts generated Markdown where a page has a marker, and warns about missing docstrings.

Markers are HTML comments on a line of their own, which GitHub does not show:

- ``<!-- generated: python gravac -->``: every name in ``gravac.__all__``;
- ``<!-- generated: commands -->``: the help of every ``gravac`` command;
- ``<!-- generated: routes -->``: every route of the controller, from its OpenAPI document.
"""

import re
from collections.abc import Callable

from sphinx.application import Sphinx
from sphinx.util import logging

from tools.site import commands, public_api, routes

MARKER = re.compile(r"^<!-- generated: (\w+) ?([\w.]*) -->$", re.MULTILINE)
GENERATORS: dict[str, Callable[[str], str]] = {
    "python": public_api.page,
    "commands": commands.page,
    "routes": routes.page,
}
log = logging.getLogger(__name__)


def fill_markers(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace each marker of a page with what is generated for it. Handles Sphinx's ``source-read``."""

    def generated(match: re.Match[str]) -> str:
        name, argument = match.groups()
        if name not in GENERATORS:
            log.warning("no generator is named %r", name, location=docname, type="gravac")
            return ""
        if name == "python":
            for missing in public_api.undocumented(argument):
                log.warning("%s has no docstring", missing, location=docname, type="gravac")
        return GENERATORS[name](argument)

    source[0] = MARKER.sub(generated, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", fill_markers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
