"""A Sphinx extension: puts generated Markdown where a page has a marker, and warns about missing docstrings.

Markers are HTML comments on a line of their own, which GitHub does not show:

- ``<!-- generated: python gravac -->``: every name in ``gravac.__all__``;
- ``<!-- generated: commands -->``: the help of every ``gravac`` command;
- ``<!-- generated: routes -->``: every route of the controller, from its OpenAPI document.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon.docstring import GoogleDocstring
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


def read_sections(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn "Args:", "Returns:" and "Raises:" into fields. Handles autodoc's ``autodoc-process-docstring``.

    Napoleon itself takes the text before a colon in a property's first line for a type.
    """
    kind: Literal["class", "method"] = "class" if what in ("class", "exception") else "method"
    lines[:] = GoogleDocstring(list(lines), what=kind, name=name, obj=thing, options=options).lines()


def resolve(
    app: Sphinx, environment: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Element | None:
    """Link a reference by another path of a public object, such as ``gravac.policies.Policy``, to its public name, and
    leave the other types in signatures without a link: torch's, or records of ours that the trace page describes.

    Roles that somebody wrote, and exceptions after "Raises:", must be found. Handles ``missing-reference``.
    """
    if node.get("refdomain") != "py":
        return None
    public = public_api.public_name(node["reftarget"])
    if public is not None:
        python, docname = environment.domains.python_domain, node.get("refdoc", environment.docname)
        return python.resolve_xref(environment, docname, app.builder, "obj", public, node, text)
    is_written = "refwarn" in node or node.get("reftype") == "exc"
    return None if is_written else text


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", fill_markers)
    app.connect("autodoc-process-docstring", read_sections)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
