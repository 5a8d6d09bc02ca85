"""``gravac bench hook``: what the hook costs where there is nothing to save."""

import click

from gravac_controller.bench.hook import OTHERS, Pairs, run
from gravac_controller.cli.bench import options as bench_options
from gravac_controller.cli.bench import table as bench_table
from gravac_controller.cli.bench.run import perform


@click.command()
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Ranks, on a core each."
)
@bench_options.pairs(12)
@click.option(
    "--steps", type=click.IntRange(2, 10_000), default=8, show_default=True, help="Timed steps of a block."
)
@click.option(
    "--warmup",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="Steps before them that are not timed.",
)
@click.option(
    "--way",
    "ways",
    type=click.Choice(list(OTHERS)),
    multiple=True,
    default=list(OTHERS),
    help="Only this one; may be given several times. [default: all]",
)
@bench_options.width
@bench_options.as_json
def hook(
    ranks: int, pairs: int, steps: int, warmup: int, ways: tuple[str, ...], width: int, as_json: bool
) -> None:
    """A training step with the agent against plain DDP, side by side on this machine, where nothing is slow.

    An agent that only watches, one that sends 1 % by Top-k, PyTorch's fp16 hook, and plain DDP once more, whose ratio
    tells how much noise there is. Blocks of steps take turns.

    \b
    Example:
      gravac bench hook --pairs 20
      gravac bench hook --way again --way observing --steps 4 --warmup 1 --pairs 60
    """
    chosen = Pairs(ranks=ranks, pairs=pairs, steps=steps, warmup=warmup, ways=ways, width=width)
    perform(lambda scratch, tell: run(chosen, scratch, tell), bench_table.steps, as_json)
