"""``gravac doctor``: say whether to compress on a network, and with what."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from gravac.findings import NEXT, WHY
from gravac.traces import TraceError, read_trace
from gravac.wording import format_rate, plan_in_words, printable
from gravac_controller.cli.source import CannotUse, TraceFile, active_part, json_option, needing_torch
from gravac_controller.cli.whatif.device import times_on
from gravac_controller.cli.whatif.question import DEFAULT_RANKS, KINDS, question
from gravac_controller.cli.whatif.show import delay
from gravac_controller.cli.wording import Listing, number, printer, seconds

if TYPE_CHECKING:
    from gravac.predict.advice import Advice
    from gravac.predict.timemodel import StepTime

NAMES = {"adamw": "AdamW", "adam": "Adam"}
"""Classes that ``gravac.optim`` has others for."""


@click.command()
@click.argument("trace", required=False, type=TraceFile())
@question
@click.option(
    "--compute",
    type=click.FloatRange(1e-6, 1e4),
    metavar="SECONDS",
    help="A step of one rank without any exchange. Needed without a trace.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Measure encoding on cpu, cuda or cuda:1 of this machine; h100, where there is none: as measured once.  "
    "[default: as on one core of an AMD EPYC]",
)
@json_option
def doctor(
    trace: Path | None,
    link: tuple[float, float | None] | None,
    ranks: int | None,
    elements: int | None,
    compute: float | None,
    device: str | None,
    optimizer: str | None,
    bound: float,
    as_json: bool,
) -> None:
    """Say whether to compress, with what, and what it is worth.

    With TRACE, the journal of a job, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs, steps are
    predicted by a model of that job. Without, give the size of the model, the computation of a step and the network.
    Efficiency is what simulations showed for the codec, the kind of optimizer and the ranks; with SGD also for the
    noise of the gradient, where the trace shows it.

    Traces of PyTorch's profiler are for gravac observe.

    \b
    Examples:
      gravac doctor gravac-runs/my-job
      gravac doctor --link 1gbit --ranks 8 --elements 25e6 --compute 0.3 --optimizer adamw
      gravac doctor --link 25gbit --ranks 8 --elements 25e6 --compute 0.05 --device cuda
    """
    if trace is not None:
        if device is not None:
            raise click.UsageError(
                "--device is for a job without a trace: a trace has what its own device took"
            )
        for value, name in ((elements, "--elements"), (compute, "--compute")):
            if value is not None:
                raise click.UsageError(f"{name} is for a job without a trace: the trace has it")
        _printed(_of_trace(trace, link, ranks, optimizer, bound), as_json)
        return
    if elements is None or compute is None or link is None:
        raise click.UsageError(
            "give a TRACE, or the size of the model, the computation of a step and the network: "
            "--elements 25e6 --compute 0.3 --link 1gbit"
        )
    _printed(
        _of_sizes(link, ranks or DEFAULT_RANKS, elements, compute, device, optimizer or "unknown", bound),
        as_json,
    )


def _printed(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
    else:
        show(result, printer())


def _of_sizes(
    asked: tuple[float, float | None],
    ranks: int,
    elements: int,
    compute: float,
    device: str | None,
    optimizer: str,
    bound: float,
) -> dict[str, Any]:
    """Advise on a job that was never run. ``asked``: bits a second, and the latency if given."""
    with needing_torch("predictions need"):
        from gravac.predict.advice import AGED, advise, usual_plans
        from gravac.predict.nominal import LATENCY_SECONDS, NominalJob, link
    bits, given = asked
    latency = LATENCY_SECONDS if given is None else given
    named, kind = NAMES.get(optimizer, ""), KINDS[optimizer]
    job = NominalJob(elements, ranks, compute, aged=kind == AGED)
    between = link(bits, latency)
    note = "encoding and decoding are taken to cost what they do on one core of an AMD EPYC"
    if device is not None:
        plain = job
        kinds = (kind, AGED, "adam-low-beta")
        plans = dict.fromkeys(plan for each in kinds for plan in usual_plans(kind=each))
        found = times_on(
            device,
            plans,
            elements,
            ranks,
            lambda plan: plain.volume(plan.codec or "", plan.cf, between).decoded,
        )
        job, note = replace(job, coding=found.seconds), found.note

    def steps(codec: str, cf: float, rule: str) -> "tuple[StepTime, float]":
        under = replace(job, aged=rule == AGED)
        return under.step(codec, cf, between), under.volume(codec, cf, between).payload_bytes

    advice = advise(
        usual_plans(kind=kind),
        steps,
        kind,
        bound,
        ranks=ranks,
        optimizer=named,
    )
    return _record(advice, bound) | {
        "trace": None,
        "elements": elements,
        "ranks": ranks,
        "bits_per_second": bits,
        "latency_seconds": latency,
        "optimizer": kind,
        "notes": [note],
    }


def _of_trace(
    trace: Path,
    link: tuple[float, float | None] | None,
    ranks: int | None,
    optimizer: str | None,
    bound: float,
) -> dict[str, Any]:
    """Advise on the job of a trace."""
    with needing_torch("predictions need"):
        from gravac.predict import Predictor, Recording
        from gravac.predict.advice import advise_job
        from gravac_controller.cli.whatif.answer import check_network
    try:
        recording = Recording.from_trace(read_trace(active_part(trace)))
        if link is None:
            check_network(recording, "--link")
        predictor = Predictor([(recording, None)])
        was, levels = predictor.scenario(), recording.levels
        network = was.network
        if link is not None:
            bits, latency = link
            latency = network.latency_seconds if latency is None else latency
            network = replace(network, latency_seconds=latency, bytes_per_second=bits / 8 / levels.ranks)
        count = ranks or was.ranks
        spec = recording.spec
        kind, named, beta = spec.optimizer_kind, NAMES.get(optimizer or "", ""), None
        if optimizer is not None:
            kind = KINDS[optimizer]
        elif spec.optimizer is not None:
            named, beta = spec.optimizer.name, spec.optimizer.momentum
        place = replace(was, network=network, ranks=count)
        advice = advise_job(predictor, place, kind, bound, named, beta)
    except (TraceError, ValueError) as error:
        profiled = trace.name.endswith((".json", ".json.gz")) and isinstance(error, TraceError)
        hint = f". Is it a trace of PyTorch's profiler? gravac observe {trace}" if profiled else ""
        raise CannotUse(printable(f"{trace}: {error}{hint}")) from None
    notes = [
        *filter(None, [levels.words(count, recording.elements)]),
        *recording.notes,
        *predictor.fit.unknown,
    ]
    sent = {codec for codec, cf in recording.sent if cf > 1.0}
    if any(
        option.codec not in ("dense", *sent) and predictor.coded_at_start(option.codec, option.cf) is None
        for option in advice.options
    ):
        notes.append(f"encoding and decoding of codecs that were not sent: as {recording.codec}'s")
    if spec.optimizer is None and optimizer is None:
        notes.append("the trace does not name the optimizer; say it with --optimizer")
    return _record(advice, bound) | {
        "trace": str(trace),
        "elements": recording.elements,
        "ranks": count,
        "bits_per_second": 8 * network.bytes_per_second * levels.ranks,
        "latency_seconds": network.latency_seconds,
        "optimizer": kind,
        "notes": notes,
    }


def _record(advice: "Advice", bound: float) -> dict[str, Any]:
    return {
        "compress": advice.chosen.cf > 1.0,
        **advice.finding.record(),
        "other_optimizers": advice.others or None,
        "bound": bound,
        "chosen": advice.chosen.label,
        "rows": [option.record() for option in advice.options],
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the verdict in up to three lines, then what it follows from."""
    console.print(printable(result["verdict"]), style="bold")
    for begin, text in ((WHY, result["why"]), (NEXT, result["next"])):
        if text:
            console.print(printable(f"{begin}{text}."))
    if result["other_optimizers"]:
        console.print(printable(result["other_optimizers"]))
    console.print(
        f"{result['elements']:,} parameters, {result['ranks']} ranks, links of "
        f"{format_rate(result['bits_per_second'])}, {delay(result['latency_seconds'])}; optimizer: "
        f"{result['optimizer']}"
    )
    table = Listing(
        ("Plan",),
        ("Fewer bytes", "Step", "Network", "η", "Useful throughput", "Within the bound"),
        leaving=("Network", "Within the bound", "η", "Fewer bytes"),
    )
    for row in result["rows"]:
        table.add_row(
            plan_in_words(row["codec"], row["cf"]) + (" *" if row["plan"] == result["chosen"] else ""),
            f"{number(row['wire_cf'])}x",
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
