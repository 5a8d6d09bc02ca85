"""``gravac bench encode`` and ``multilevel``: what compressing costs, on one core."""

from typing import Any

import click

from gravac_controller.bench import machine
from gravac_controller.bench.places import Tell
from gravac_controller.bench.program import measure
from gravac_controller.cli.bench import options as bench_options
from gravac_controller.cli.bench import table as bench_table
from gravac_controller.cli.bench.run import perform


@click.command()
@bench_options.elements("1e7")
@bench_options.pairs(15)
@bench_options.as_json
def encode(counts: tuple[int, ...], pairs: int, as_json: bool) -> None:
    """Top-k with error feedback against torch.topk, at 1 % and 10 %, and the other kernels against plain torch.

    Both sides add the residual, choose the k largest of |x|, gather them and leave the rest behind as the new residual;
    buffers are kept between steps. "read, add, write" is one pass over the same arrays: no step with error
    feedback can be faster.

    \b
    Example:
      gravac bench encode --n 1e6 --n 1e7 --pairs 21
    """
    perform(
        lambda _, tell: _measured("encode", ["--n", *counts, "--pairs", pairs], tell),
        bench_table.pairs,
        as_json,
    )


@click.command()
@bench_options.elements("1e7")
@click.option(
    "--levels",
    type=bench_options.FACTOR,
    nargs=2,
    default=(10.0, 100.0),
    show_default=True,
    metavar="CF CF",
    help="The weaker CF and the stronger.",
)
@bench_options.pairs(9)
@click.option(
    "--train-width",
    type=click.IntRange(8, 8192),
    default=448,
    show_default=True,
    help="Width of the LSTM whose gradients the curve is checked on; 448: 1.05 M parameters.",
)
@click.option(
    "--train-steps",
    type=click.IntRange(1, 10_000),
    default=40,
    show_default=True,
    help="Steps it is trained before, at each of four CFs.",
)
@bench_options.as_json
def multilevel(
    counts: tuple[int, ...],
    levels: tuple[float, float],
    pairs: int,
    train_width: int,
    train_steps: int,
    as_json: bool,
) -> None:
    """Two levels of compression and the curve of gain against CF: what they cost and whether they are true.

    Against one level alone, and against compressing twice; by Top-k, DGC, RedSync, SIDCo and two kinds of Random-k.
    Then the curve against sorting, on gradients of a training with error feedback. "Paper": the best ratio in
    GraVAC's table 3, of GPUs, at 10x and 1000x.

    \b
    Example:
      gravac bench multilevel --n 1e6 --levels 10 1000
    """
    if levels[0] > levels[1]:
        raise click.BadParameter(
            f"{levels[0]:g} and {levels[1]:g}: give the weaker CF, which is the smaller, first",
            param_hint="--levels",
        )
    options = ["--n", *counts, "--pairs", pairs, "--levels", *levels]
    options += ["--train-width", train_width, "--train-steps", train_steps]
    perform(lambda _, tell: _measured("multilevel", options, tell), bench_table.pairs, as_json)


def _measured(name: str, options: list[Any], tell: Tell) -> dict[str, Any]:
    described = machine.describe()
    return {"benchmark": name, "machine": described, **measure(name, options, tell)}
