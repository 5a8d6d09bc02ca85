"""``gravac bench collective``: how payloads meet, measured and predicted."""

import click

from gravac_controller.bench.collective import Meetings, run
from gravac_controller.bench.namespaces import NetworkUnavailable
from gravac_controller.cli.bench import options as bench_options
from gravac_controller.cli.bench import table as bench_table
from gravac_controller.cli.bench.run import perform


@click.command()
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=4, show_default=True, help="Ranks that exchange payloads."
)
@bench_options.elements("1e6")
@bench_options.factors(10.0, 100.0, 1000.0)
@bench_options.codec("topk")
@click.option(
    "--link",
    default="none",
    show_default=True,
    callback=bench_options.link,
    metavar="RATE",
    help="Put each rank on a host with a link of that rate (needs root, ip and tc): 100mbit; none: side by side.",
)
@bench_options.pairs(15)
@bench_options.as_json
def collective(
    ranks: int,
    counts: tuple[int, ...],
    factors: tuple[float, ...],
    codec: str,
    link: str,
    pairs: int,
    as_json: bool,
) -> None:
    """Ways for compressed gradients to meet, against the dense all-reduce: measured, and by the cost model.

    Gather, shared support, reduce-scatter and the all-reduce of what was decoded, each from the payload to the mean.
    The cost model uses latency and bandwidth as the agent measures them before its first step.

    \b
    Example:
      gravac bench collective --ranks 4 --link 100mbit --cf 10 --cf 100
    """
    meetings = Meetings(codec=codec, ranks=ranks, n=counts, cf=factors, link=link, pairs=pairs)
    try:
        perform(lambda scratch, tell: run(meetings, scratch, tell), bench_table.meetings, as_json)
    except NetworkUnavailable as error:
        raise click.ClickException(
            f"links of {link} cannot be made here: {error}. Leave --link out to use this machine's loopback."
        ) from None
