"""``gravac bench wire``: what a nominal CF is worth in bytes."""

import click

from gravac_controller.bench import rate
from gravac_controller.bench.wire import Sizes, run
from gravac_controller.cli.bench import options as bench_options
from gravac_controller.cli.bench import table as bench_table
from gravac_controller.cli.bench.run import perform


def _real(context: click.Context, option: click.Parameter, text: str) -> str:
    if rate.parse(bench_options.link(context, option, text)) is None:
        raise click.BadParameter("bytes take no time on a link without a rate; write for example 1gbit")
    return text


@click.command()
@bench_options.elements("1e5", "1e6", "1e7", "1e8")
@bench_options.factors(10.0, 32.0, 100.0, 316.0, 1000.0)
@bench_options.codec("topk+bf16")
@click.option(
    "--pack-up-to",
    default="1e7",
    show_default=True,
    callback=bench_options.largest,
    metavar="N",
    help="Largest gradient that is really compressed; of larger ones only the layout is worked out.",
)
@click.option(
    "--count-up-to",
    default="1e6",
    show_default=True,
    callback=bench_options.largest,
    metavar="N",
    help="Largest that is really sent, between two hosts that are network namespaces (needs root, ip and tc).",
)
@click.option(
    "--link",
    default="1gbit",
    show_default=True,
    callback=_real,
    metavar="RATE",
    help="Rate for which times are worked out.",
)
@bench_options.as_json
def wire(
    counts: tuple[int, ...],
    factors: tuple[float, ...],
    codec: str,
    pack_up_to: int,
    count_up_to: int,
    link: str,
    as_json: bool,
) -> None:
    """Bytes of compressed gradients: by layout, as packed, and as a network interface counts them.

    "CF on the wire" is dense bytes over bytes handed to the collective, positions and headers included.

    \b
    Example:
      gravac bench wire --codec topk --n 1e6
    """
    sizes = Sizes(
        codec=codec, n=counts, cf=factors, link=link, pack_up_to=pack_up_to, count_up_to=count_up_to
    )
    perform(lambda scratch, tell: run(sizes, scratch, tell), bench_table.bytes_sent, as_json)
