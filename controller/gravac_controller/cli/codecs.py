"""``gravac codecs``: the catalogue of everything that can be chosen by name."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from gravac_controller.cli.source import json_option
from gravac_controller.cli.wording import printer

if TYPE_CHECKING:
    from gravac.catalogue import CatalogueEntry


@click.command()
@click.argument("name", required=False)
@json_option
def codecs(name: str | None, as_json: bool) -> None:
    """List everything that can be chosen by name: compressors, aggregators, error memories, collectives and
    policies. With NAME, describe one: how it works, its source, settings, bytes and proven error.

    Settings follow a colon: compressor="qsgd:bits=4". The same catalogue as a page: docs/catalogue.md.

    \b
    Example:
      gravac codecs topk
    """
    entries = _catalogue()
    if name is not None:
        entries = _named(entries, name)
    if as_json:
        click.echo(json.dumps({"members": [entry.model_dump(mode="json") for entry in entries]}))
        return
    from gravac_controller.cli.entries import in_full, overview  # only now: it needs torch

    console = printer()
    with console.capture() as shown:
        if name is None:
            overview(console, entries)
        else:
            for entry in entries:
                in_full(console, entry)
    click.echo("\n".join(line.rstrip() for line in shown.get().strip("\n").splitlines()))


def _catalogue() -> "Sequence[CatalogueEntry]":
    try:
        from gravac.catalogue import catalogue
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.ClickException("the catalogue is computed with torch, which is not installed") from None
    return catalogue()


def _stacked(entries: "Sequence[CatalogueEntry]", name: str) -> "Sequence[str]":
    """Return the two codecs of ``selector+quantizer``; nothing for other names."""
    both = name.split("+")
    codecs = {entry.name for entry in entries if entry.kind == "compressor"}
    return both if len(both) == 2 and codecs.issuperset(both) else ()


def _named(entries: "Sequence[CatalogueEntry]", name: str) -> "Sequence[CatalogueEntry]":
    found = [entry for entry in entries if entry.name in (name, *_stacked(entries, name))]
    if not found:
        close = get_close_matches(name, {entry.name for entry in entries}, n=3)
        meant = f" Did you mean {' or '.join(close)}?" if close else ""
        raise click.BadParameter(
            f"no entry is named {name!r}.{meant} `gravac codecs` lists all.", param_hint="NAME"
        )
    return found
