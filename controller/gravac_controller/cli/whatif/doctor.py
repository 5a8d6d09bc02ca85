"""``gravac doctor``: say whether to compress on a network, with what, and what it is worth."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gravac.traces import TraceError, read_trace
from gravac.wording import plan_in_words, printable
from gravac_controller.cli.source import CannotUse, TraceFile, active_part, json_option, needing_torch
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.whatif.show import delay, rate
from gravac_controller.cli.wording import Listing, number, printer, seconds

KINDS = {"sgd": "sgd", "adamw": "adam", "adam": "adam", "lamb": "adam", "lion": "sign", "other": "other"}
"""Kinds of optimizers by the names that users know."""
DEFAULT_RANKS = 4


@click.command()
@click.argument("trace", type=TraceFile(), required=False)
@click.option(
    "--link",
    callback=quantities.single(quantities.bandwidth),
    metavar="RATE",
    help="Nominal bandwidth of each rank's link: 100mbit, 10G.  [default: that of the trace] Needed without one.",
)
@click.option(
    "--latency",
    callback=quantities.single(quantities.latency),
    metavar="TIME",
    help="Latency of a message between two ranks: 50us, 0.2ms.  [default: that of the trace, else 200us]",
)
@click.option(
    "--ranks",
    type=click.IntRange(2, 100_000),
    help=f"Ranks.  [default: those of the trace, else {DEFAULT_RANKS}]",
)
@click.option(
    "--elements",
    callback=quantities.single(quantities.elements),
    metavar="N",
    help="Parameters of the model: 3.5e6. Needed without a trace.",
)
@click.option(
    "--compute",
    type=click.FloatRange(1e-6, 1e4),
    metavar="SECONDS",
    help="A step of one rank without any exchange. Needed without a trace.",
)
@click.option(
    "--optimizer", type=click.Choice(list(KINDS)), help="Optimizer.  [default: that of the trace, else other]"
)
@click.option(
    "--bound",
    type=click.FloatRange(0.0, 1.0),
    default=0.02,
    show_default=True,
    help="Largest loss of statistical efficiency that you accept. 1: any.",
)
@json_option
def doctor(
    trace: Path | None,
    link: float | None,
    latency: float | None,
    ranks: int | None,
    elements: int | None,
    compute: float | None,
    optimizer: str | None,
    bound: float,
    as_json: bool,
) -> None:
    """Say in a sentence whether to compress, with what, and what it is worth.

    With TRACE, the journal of a job, its folder or its name, steps are predicted by a model of that job. Without, give
    the size of the model, the computation of a step and the network. Efficiency is what simulations showed for the
    codec, the kind of optimizer and the ranks; with SGD also for the noise of the gradient, where the trace shows it.

    \b
    Examples:
      gravac doctor gravac-runs/my-job
      gravac doctor --link 1gbit --ranks 8 --elements 25e6 --compute 0.3 --optimizer adamw
    """
    kind = None if optimizer is None else KINDS[optimizer]
    if trace is not None:
        for value, name in ((elements, "--elements"), (compute, "--compute")):
            if value is not None:
                raise click.UsageError(f"{name} is for a job without a trace: the trace has it")
        _printed(_of_trace(trace, link, latency, ranks, kind, bound), as_json)
        return
    if elements is None or compute is None or link is None:
        raise click.UsageError(
            "give a TRACE, or the size of the model, the computation of a step and the network: "
            "--elements 25e6 --compute 0.3 --link 1gbit"
        )
    network = (2e-4 if latency is None else latency, link)
    _printed(_of_sizes(network, ranks or DEFAULT_RANKS, elements, compute, kind or "other", bound), as_json)


def _printed(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
    else:
        show(result, printer())


def _of_sizes(
    network: tuple[float, float], ranks: int, elements: int, compute: float, kind: str, bound: float
) -> dict[str, Any]:
    """Advise on a job that was never run. ``network``: latency, and bits a second."""
    with needing_torch("predictions need"):
        from gravac.whatif.nominal import NominalJob, link
    latency, bits = network
    job, between = NominalJob(elements, ranks, compute), link(bits, latency)
    answer = _answer(lambda codec, cf: job.step(codec, cf, between), None, kind, bound, 0.0, ranks, None)
    return answer | {
        "trace": None,
        "elements": elements,
        "ranks": ranks,
        "bits_per_second": bits,
        "latency_seconds": latency,
        "kind": kind,
        "notes": ["encoding and decoding are taken to cost what they do on one core of an AMD EPYC"],
    }


def _of_trace(
    trace: Path, link: float | None, latency: float | None, ranks: int | None, kind: str | None, bound: float
) -> dict[str, Any]:
    """Advise on the job of a trace."""
    with needing_torch("predictions need"):
        from gravac.collectives import Network
        from gravac.whatif import Predictor, Recording, Scenario
    try:
        recording = Recording.from_trace(read_trace(active_part(trace)))
        predictor = Predictor([(recording, None)])
        was = predictor.scenario()
        network = Network(
            latency_seconds=was.network.latency_seconds if latency is None else latency,
            bytes_per_second=was.network.bytes_per_second if link is None else link / 8,
        )
        count = ranks or was.ranks
        spec = recording.spec
        found = kind or ("other" if spec.optimizer is None else spec.optimizer.kind)

        def steps(codec: str, cf: float) -> Any:
            chosen = spec.compressor if cf == 1.0 else codec
            return predictor.predict(Scenario(network=network, ranks=count, compressor=chosen), cf).step

        answer = _answer(steps, spec.compressor, found, bound, predictor.error, count, recording.confirmed)
    except (TraceError, ValueError) as error:
        raise CannotUse(printable(f"{trace}: {error}")) from None
    notes = list(predictor.fit.unknown)
    sent = {codec for codec, cf in recording.sent if cf > 1.0}
    if any(row["codec"] not in ("dense", *sent) for row in answer["rows"]):
        notes.append(f"encoding and decoding of codecs that were not sent: as {recording.codec}'s")
    if spec.optimizer is None and kind is None:
        notes.append("the trace does not name the optimizer; say it with --optimizer")
    return answer | {
        "trace": str(trace),
        "elements": recording.elements,
        "ranks": count,
        "bits_per_second": 8 * network.bytes_per_second,
        "latency_seconds": network.latency_seconds,
        "kind": found,
        "notes": notes,
    }


def _answer(
    steps: Callable[[str, float], Any],
    compressor: str | None,
    kind: str,
    bound: float,
    margin: float,
    ranks: int,
    confirmed: float | None,
) -> dict[str, Any]:
    from gravac.whatif.advice import WORTH, advise, usual_plans

    usual = usual_plans() if compressor is None else usual_plans(compressor)
    advice = advise(usual, steps, kind, bound, max(WORTH, margin), ranks=ranks, confirmed=confirmed)
    return {
        "compress": advice.chosen.cf > 1.0,
        "sentence": advice.sentence,
        "bound": bound,
        "chosen": advice.chosen.label,
        "rows": [
            {
                "plan": option.label,
                "codec": option.codec,
                "cf": option.cf,
                "step_seconds": option.step.seconds,
                "exposed_seconds": option.step.exposed,
                "efficiency": option.efficiency,
                "speedup": option.speedup,
                "keeps_bound": option.keeps,
            }
            for option in advice.options
        ],
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the sentence, then what it follows from."""
    console.print(printable(result["sentence"]), style="bold")
    console.print(
        f"{result['elements']:,} parameters, {result['ranks']} ranks, links of {rate(result['bits_per_second'])}, "
        f"{delay(result['latency_seconds'])}; optimizer: {result['kind']}"
    )
    table = Listing(
        ("Plan",),
        ("Step", "Network", "η", "Useful throughput", "Within the bound"),
        leaving=("Network", "Within the bound", "η"),
    )
    for row in result["rows"]:
        table.add_row(
            plan_in_words(row["codec"], row["cf"]) + (" *" if row["plan"] == result["chosen"] else ""),
            seconds(row["step_seconds"]),
            seconds(row["exposed_seconds"]),
            number(row["efficiency"]),
            f"{row['speedup']:.2f}x",
            "yes" if row["keeps_bound"] else "no",
        )
    console.print(table)
    console.print(
        "* advised. Useful throughput: step of dense / step of the plan · η. All steps are predicted.",
        style="dim",
    )
    for note in result["notes"]:
        console.print(f"note: {printable(note)}")
