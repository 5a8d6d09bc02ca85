"""Options of the benchmarks, with errors that show the expected form."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gravac_controller.cli.whatif import quantities
from gravac_lab.bench.network import parse_rate

Command = TypeVar("Command", bound=Callable[..., Any])
read_count = quantities.single(quantities.elements)

as_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object on stdout at the end, and everything else on stderr.",
)


def elements(*default: str) -> Callable[[Command], Command]:
    """The option for the number of elements of a gradient, repeatable."""
    return click.option(
        "--n",
        "counts",
        multiple=True,
        default=default,
        show_default=True,
        callback=lambda context, option, texts: tuple(read_count(context, option, text) for text in texts),
        metavar="N",
        help="Elements of a gradient: 10000000 or 1e7. Repeatable.",
    )


def codec(default: str) -> Callable[[Command], Command]:
    """The option for the codec."""
    return click.option(
        "--codec",
        default=default,
        show_default=True,
        callback=_codec,
        metavar="CODEC",
        help="Codec, one of `gravac codecs`.",
    )


def link(context: click.Context, option: click.Parameter, text: str) -> str:
    """The callback of an option that is the bandwidth of a link."""
    try:
        parse_rate(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def _codec(context: click.Context, option: click.Parameter, text: str) -> str:
    try:
        from gravac.compressors import build
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise click.ClickException("compression needs torch, which is not installed") from None
    try:
        build(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text
