"""Options of commands that predict a job: its network, ranks and size, the optimizer, and the loss that is accepted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from gravac_controller.cli.whatif import quantities

KINDS = {
    "sgd": "sgd",
    "adamw": "adam",
    "adam": "adam",
    "adamw-aged": "adam-aged",
    "adamw-low-beta": "adam-low-beta",
    "lamb": "adam",
    "lion": "sign",
    "muon": "matrix",
    "other": "other",
    "unknown": "unknown",
}
"""Kinds of optimizers by the names that users know; ``adamw-aged`` is that of ``gravac.optim``, ``adamw-low-beta`` has
a β₁ of at most 0.6. Of ``lion`` and ``other`` nothing was simulated; ``unknown`` counts as Adam."""
DEFAULT_RANKS = 4
"""Ranks of a job that nothing was recorded of."""
MOST_PARAMETERS = 10**13
OPTIONS = (
    click.option(
        "--link",
        callback=quantities.single(quantities.network),
        metavar="RATE[,TIME]",
        help="Nominal bandwidth of each rank's link, and latency of a message: 100mbit, or 10G,50us.  "
        "[default: as recorded; a latency that nothing recorded shows is 200us, on GPUs 14us]",
    ),
    click.option(
        "--ranks",
        type=click.IntRange(2, 100_000),
        help=f"Number of ranks.  [default: as recorded, else {DEFAULT_RANKS}]",
    ),
    click.option(
        "--elements",
        callback=quantities.single(partial(quantities.elements, most=MOST_PARAMETERS)),
        metavar="N",
        help="Parameters of the model: 3.5e6. Needed where nothing recorded shows them.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(list(KINDS)),
        help="Optimizer.  [default: as recorded, else unknown]",
    ),
    click.option(
        "--bound",
        type=click.FloatRange(0.0, 1.0),
        default=0.02,
        show_default=True,
        help="Largest loss of statistical efficiency that you accept. 1: any.",
    ),
)


def question(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
