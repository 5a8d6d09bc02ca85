"""``gravac memory``: the bytes per rank of error memories, for a model and a number of ranks."""

import json
import re

import click

from gravac_controller.cli.source import json_option, needing_torch
from gravac_controller.cli.wording import Listing, printer, size

MEMORIES = ("residual", "residual-bf16", "conef", "conef:bits=4", "conef-sketch:size=0.1", "none")
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


class Count(click.ParamType[float]):
    """A number with a unit: 350m, 7b, 1.3B."""

    name = "COUNT"

    def convert(
        self, value: str | float, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """Return the number."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", str(value).strip().lower())
        if found is None or not float(found[1]) > 0:
            self.fail(f"{value!r} is not a number of parameters such as 350m or 7b", parameter, context)
        return float(found[1]) * UNITS[found[2]]


@click.command()
@click.option("--parameters", type=Count(), required=True, help="Parameters of the model: 350m, 7b.")
@click.option("--ranks", type=click.IntRange(1, 1_000_000), required=True, help="Number of ranks.")
@click.option(
    "--memory",
    "memories",
    multiple=True,
    metavar="NAME",
    help="Error memory with its settings, such as conef:bits=4; may be repeated. Default: a choice of them.",
)
@click.option(
    "--ddp", is_flag=True, help="For DistributedDataParallel, which shards nothing. Default: for FSDP2."
)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "sgd-momentum", "sgd"]),
    default="adamw",
    show_default=True,
    help="Optimizer, for the bytes of its state.",
)
@click.option("--compressor", default="topk+bf16", show_default=True, help="The job's codec.")
@json_option
def memory(
    parameters: float,
    ranks: int,
    memories: tuple[str, ...],
    ddp: bool,
    optimizer: str,
    compressor: str,
    as_json: bool,
) -> None:
    """Show the bytes that error memories take on each rank, beside the rest of the training.

    FSDP2 shards parameters, gradients and the optimizer's state. An error memory holds what this rank has not sent to
    any of the others, so it has the size of the whole gradient. Activations and gathered parameters are not counted.

    \b
    Example:
      gravac memory --parameters 7b --ranks 64
    """
    with needing_torch("error memories are tried with"):
        from gravac.memories import build
        from gravac.memories.footprint import footprint
    rows = []
    for name in memories or MEMORIES:
        try:
            found = footprint(
                build(name), parameters, ranks, sharded=not ddp, optimizer=optimizer, compressor=compressor
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None
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
    click.echo(f"Bytes on each of {ranks} ranks under {how}, with {optimizer} in float32.")
