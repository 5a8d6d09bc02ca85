"""``gravac codecs``: the catalogue of everything that can be chosen by name, and the bytes of error memories."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

import click

from gravac.codec_text import parts_of
from gravac_controller.cli.source import json_option, needing_torch
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.whatif.question import MOST_PARAMETERS
from gravac_controller.cli.wording import Listing, printer, size

if TYPE_CHECKING:
    from gravac.catalogue import CatalogueEntry


MEMORIES = ("residual", "residual-bf16", "conef", "conef:bits=4", "conef-sketch:size=0.1", "none")
"""Error memories whose bytes are shown where no name is given."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--parameters",
    callback=quantities.single(partial(quantities.elements, most=MOST_PARAMETERS)),
    metavar="COUNT",
    help="Show the bytes on each rank of error memories, NAMEs or a choice of them, for a model with so many "
    "parameters: 350m, 7b.",
)
@click.option("--ranks", type=click.IntRange(1, 1_000_000), help="With --parameters: number of ranks.")
@click.option(
    "--ddp",
    is_flag=True,
    help="With --parameters: for DistributedDataParallel, which shards nothing. Default: for FSDP2.",
)
@json_option
def codecs(
    names: tuple[str, ...], parameters: int | None, ranks: int | None, ddp: bool, as_json: bool
) -> None:
    """List everything that can be chosen by name: compressors, aggregators, error memories, collectives and
    policies. With NAME, describe one: how it works, its source, settings, bytes and proven error.

    Settings follow a colon: compressor="qsgd:bits=4". The same catalogue as a page: docs/catalogue.md.

    FSDP2 shards parameters, gradients and the optimizer's state. An error memory holds what this rank has not sent to
    any of the others, so it has the size of the whole gradient. --parameters shows its bytes beside those of a training
    with AdamW in float32, without activations and gathered parameters.

    \b
    Examples:
      gravac codecs topk
      gravac codecs --parameters 7b --ranks 64
      gravac codecs residual conef:bits=4 --parameters 1b --ranks 8 --ddp
    """
    if parameters is not None:
        if ranks is None:
            raise click.UsageError("--parameters needs the number of ranks: add for example --ranks 8")
        _show_memories(names or MEMORIES, parameters, ranks, ddp, as_json)
        return
    for option, value in (("--ranks", ranks), ("--ddp", ddp)):
        if value:
            raise click.UsageError(f"{option} is for the bytes of error memories: add --parameters 7b")
    entries = _catalogue()
    if names:
        entries = [entry for name in names for entry in _named(entries, name)]
    if as_json:
        click.echo(json.dumps({"members": [entry.model_dump(mode="json") for entry in entries]}))
        return
    from gravac_controller.cli.entries import in_full, overview  # only now: it needs torch

    console = printer()
    with console.capture() as shown:
        if not names:
            overview(console, entries)
        else:
            for entry in entries:
                in_full(console, entry)
    click.echo("\n".join(line.rstrip() for line in shown.get().strip("\n").splitlines()))


def _show_memories(names: "Sequence[str]", parameters: int, ranks: int, ddp: bool, as_json: bool) -> None:
    with needing_torch("error memories are tried with"):
        from gravac.memories import build
        from gravac.memories.footprint import footprint
    rows = []
    for name in names:
        try:
            found = footprint(build(name), parameters, ranks, sharded=not ddp)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="NAME") from None
        rows.append({"memory": name, "training_bytes": found.training, "memory_bytes": found.memory})
    if as_json:
        click.echo(
            json.dumps({"parameters": parameters, "ranks": ranks, "sharded": not ddp, "memories": rows})
        )
        return
    table = Listing(("Error memory",), ("Holds", "Training", "Together"))
    for row in rows:
        held, training = float(str(row["memory_bytes"])), float(str(row["training_bytes"]))
        table.add_row(str(row["memory"]), size(held), size(training), size(held + training))
    printer().print(table)
    how = "DDP" if ddp else "FSDP2"
    click.echo(f"Bytes on each of {ranks} ranks under {how}, with AdamW in float32.")


def _catalogue() -> "Sequence[CatalogueEntry]":
    with needing_torch("the catalogue is computed with"):
        from gravac.catalogue import catalogue
    return catalogue()


def _stacked(entries: "Sequence[CatalogueEntry]", name: str) -> "Sequence[str]":
    """Return the two codecs of ``selector+quantizer``; nothing for other names."""
    both = parts_of(name)
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
