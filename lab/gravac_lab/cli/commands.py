"""``gravac bench``: benchmarks of this machine, one command for each question."""

from typing import Any

import click

from gravac_lab.bench.collective import Collectives, measure_collectives
from gravac_lab.bench.hook import Pairs, measure_hook
from gravac_lab.bench.namespaces import NetworkUnavailable
from gravac_lab.bench.program import measure
from gravac_lab.bench.ranks import Progress
from gravac_lab.bench.results import describe_machine
from gravac_lab.bench.train import WIDTH
from gravac_lab.bench.wire import Sizes, measure_wire
from gravac_lab.cli import options, output
from gravac_lab.cli.tournament import tournament
from gravac_lab.cli.train import train

TRAIN_WIDTH, TRAIN_STEPS = 448, 40
"""Size of the LSTM (1.05 million parameters) whose gradients check the gain curve, and its steps at each CF."""
PACKED_ELEMENTS, SENT_ELEMENTS = 10_000_000, 1_000_000
"""Largest gradient that is compressed, and that is sent; of larger ones bytes are computed from the layout."""
PAIRS = {"encode": 15, "multilevel": 9, "hook": 12, "collective": 15}
"""Measured pairs of each benchmark, after its warm-up."""
LEVELS = (10.0, 100.0)
"""The weaker and the stronger CF of a step with two levels."""
WIRE_FACTORS = (10.0, 32.0, 100.0, 316.0, 1000.0)
"""Nominal CFs whose bytes are shown."""
EXCHANGED_ELEMENTS, EXCHANGED_FACTORS = 1_000_000, (10.0, 100.0, 1000.0)
"""The gradient that ranks exchange, and its CFs."""


@click.group()
def bench() -> None:
    """Benchmark this machine.

    Every figure is a median of repetitions after a warm-up, with quartiles. Compared alternatives take turns, and
    ratios are medians over pairs. Exit codes: 0 success, 1 a measurement failed, 2 an option is wrong.
    """


@click.command(short_help="Top-k with error feedback, and other kernels, against torch.")
@options.elements("1e7")
@options.as_json
def encode(counts: tuple[int, ...], as_json: bool) -> None:
    """Top-k with error feedback against torch.topk, at 1 % and 10 %, and the other kernels against plain torch.

    Both sides add the residual, select the k largest of |x|, gather them and store the rest as the new residual.
    Buffers are reused between steps. "read, add, write" is one pass over the same arrays, a lower bound for a step
    with error feedback.

    \b
    Example:
      gravac bench encode --n 1e6 --n 1e7
    """
    output.perform(
        lambda _, progress: _measured("encode", ["--n", *counts], progress),
        output.pairs,
        as_json,
    )


@click.command(short_help="Cost and accuracy of two-level compression and the gain curve.")
@options.elements("1e7")
@options.as_json
def multilevel(counts: tuple[int, ...], as_json: bool) -> None:
    """Compressing at two levels, CF 10 and of these 100, and the curve of gain against CF: cost and accuracy.

    Against one level, and against compressing twice, with Top-k, DGC, RedSync, SIDCo and two kinds of Random-k. Then
    the curve against sorting, on gradients of a training with error feedback. "Published": the best ratio in table 3
    of the GraVAC paper (GPUs, 10x and 1000x).

    \b
    Example:
      gravac bench multilevel --n 1e6
    """
    words = ["--n", *counts, "--levels", *LEVELS]
    words += ["--train-width", TRAIN_WIDTH, "--train-steps", TRAIN_STEPS]
    output.perform(lambda _, progress: _measured("multilevel", words, progress), output.pairs, as_json)


@click.command(short_help="The overhead of the agent against plain DDP.")
@click.option(
    "--ranks",
    type=click.IntRange(2, 64),
    default=2,
    show_default=True,
    help="Number of ranks, each on its own core.",
)
@options.as_json
def hook(ranks: int, as_json: bool) -> None:
    """The overhead of the agent: a training step against plain DDP, side by side, without a slow network.

    Compares an agent that only observes, one that sends 1 % by Top-k, PyTorch's fp16 hook, and plain DDP again, whose
    ratio shows the noise. Blocks of steps take turns.

    \b
    Example:
      gravac bench hook --ranks 4
    """
    chosen = Pairs(ranks=ranks, pairs=PAIRS["hook"], width=WIDTH)
    output.perform(lambda scratch, progress: measure_hook(chosen, scratch, progress), output.steps, as_json)


@click.command(short_help="Bytes of compressed gradients at a nominal CF.")
@options.elements("1e5", "1e6", "1e7", "1e8")
@options.codec("topk+bf16")
@options.as_json
def wire(counts: tuple[int, ...], codec: str, as_json: bool) -> None:
    """Bytes of compressed gradients: by layout, as packed, and as counted by a network interface.

    "CF on the wire" is dense bytes over bytes handed to the collective, including positions and headers. Gradients of
    more than 10 million elements are not packed, and of more than a million not sent between network namespaces (which
    needs root, ip and tc).

    \b
    Example:
      gravac bench wire --codec topk --n 1e6
    """
    sizes = Sizes(
        codec=codec, n=counts, cf=WIRE_FACTORS, pack_up_to=PACKED_ELEMENTS, count_up_to=SENT_ELEMENTS
    )
    output.perform(
        lambda scratch, progress: measure_wire(sizes, scratch, progress), output.bytes_sent, as_json
    )


@click.command(short_help="Collectives for compressed gradients against all-reduce.")
@click.option("--ranks", type=click.IntRange(2, 64), default=4, show_default=True, help="Number of ranks.")
@options.codec("topk")
@click.option(
    "--link",
    default="none",
    show_default=True,
    callback=options.link,
    metavar="RATE",
    help="Put each rank on a host with a link of this bandwidth (needs root, ip and tc): 100mbit. none: side by side.",
)
@options.as_json
def collective(ranks: int, codec: str, link: str, as_json: bool) -> None:
    """Collectives for compressed gradients against the dense all-reduce: measured, and predicted by the cost model.

    Gather, shared support, owners, and the all-reduce of decoded gradients, each from the payload to the mean.
    The cost model uses the latency and bandwidth that the agent measures before its first step.

    \b
    Example:
      gravac bench collective --ranks 4 --link 100mbit
    """
    collectives = Collectives(
        codec=codec,
        ranks=ranks,
        n=EXCHANGED_ELEMENTS,
        cf=EXCHANGED_FACTORS,
        link=link,
        pairs=PAIRS["collective"],
    )
    try:
        output.perform(
            lambda scratch, progress: measure_collectives(collectives, scratch, progress),
            output.collectives,
            as_json,
        )
    except NetworkUnavailable as error:
        raise click.ClickException(
            f"links of {link} cannot be created here: {error}. Omit --link to use this machine's loopback."
        ) from None


for each in (encode, multilevel, hook, wire, collective, train, tournament):
    bench.add_command(each)


def _measured(name: str, words: list[Any], progress: Progress) -> dict[str, Any]:
    described = describe_machine()
    return {
        "benchmark": name,
        "machine": described,
        **measure(name, [*words, "--pairs", PAIRS[name]], progress),
    }
