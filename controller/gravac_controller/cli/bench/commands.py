"""``gravac bench``: measure on this machine, one command for each question."""

import click

from gravac_controller.cli.bench.collective import collective
from gravac_controller.cli.bench.hook import hook
from gravac_controller.cli.bench.kernels import encode, multilevel
from gravac_controller.cli.bench.train import train
from gravac_controller.cli.bench.wire import wire


@click.group()
def bench() -> None:
    """Measure on this machine.

    Every figure is a median of repetitions after a warm-up, with quartiles; two things that are compared take turns,
    and ratios are of pairs. Exit codes: 0 measured, 1 something could not be measured, 2 an option is wrong.
    """


for each in (encode, multilevel, hook, wire, collective, train):
    bench.add_command(each)
