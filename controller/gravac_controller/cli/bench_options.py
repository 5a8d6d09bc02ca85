"""What the benchmarks' options may be, and errors that say what to write."""

from typing import Any

import click

from gravac_controller.bench import rate

LEAST_ELEMENTS, MOST_ELEMENTS = 1000, 2**31 - 1


class Elements(click.ParamType):
    """A number of elements: 10000000, 10_000_000 or 1e7."""

    name = "elements"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            count = float(str(value).replace("_", ""))
        except ValueError:
            self.fail(f"{value!r} is no number of elements; write for example 10000000 or 1e7", param, ctx)
        if not LEAST_ELEMENTS <= count <= MOST_ELEMENTS or count != int(count):
            self.fail(
                f"{value} must be a whole number between {LEAST_ELEMENTS:,} and {MOST_ELEMENTS:,}", param, ctx
            )
        return int(count)


FACTOR = click.FloatRange(1.0, 1e6)
"""A compression factor."""

as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object last, on stdout; the rest on stderr."
)


def pairs(default: int) -> Any:
    """The option of how often to measure."""
    return click.option(
        "--pairs",
        type=click.IntRange(3, 10_000),
        default=default,
        show_default=True,
        help="Pairs of the two sides that count, beside the warm-up.",
    )


def elements(*default: int) -> Any:
    """The option of how many elements a gradient has."""
    return click.option(
        "--n",
        "counts",
        type=Elements(),
        multiple=True,
        default=default,
        show_default=True,
        metavar="N",
        help="Elements of a gradient: 10000000 or 1e7. Give it several times for several sizes.",
    )


def link(context: click.Context, option: click.Parameter, text: str) -> str:
    """Callback of an option that is the rate of a link."""
    try:
        rate.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text
