"""``gravac whatif``: predict step times and decisions on other networks, ranks, codecs and policies from a trace."""

import json
from pathlib import Path
from typing import Any

import click

from gravac import policies
from gravac.codec_text import split_plan
from gravac.traces import TraceError, read_trace
from gravac.wording import printable
from gravac_controller.cli.source import CannotUse, TraceFile, active_part, json_option, needing_torch
from gravac_controller.cli.whatif import quantities
from gravac_controller.cli.whatif.show import show
from gravac_controller.cli.wording import printer


def _policy(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            policies.parse(text)
        except ValueError as error:
            raise click.BadParameter(printable(str(error))) from None
    return text


@click.command()
@click.argument("trace", type=TraceFile())
@click.option(
    "--link",
    callback=quantities.single(quantities.networks),
    metavar="RATE,…[,TIME]",
    help="Nominal bandwidths of each rank's link, or of a host's where its ranks share it, and latency of a message: "
    "1Gbit,50us, or 100M,1G,10G [as recorded].",
)
@click.option(
    "--ranks",
    callback=quantities.listed(quantities.ranks),
    metavar="N,…",
    help="Number of ranks, at the recorded batch per rank: 64, or 2..1024 (doubling) [as recorded].",
)
@click.option("--compressor", metavar="CODEC", help="Codec, one of `gravac codecs` [as recorded].")
@click.option(
    "--codecs",
    callback=quantities.codecs,
    metavar="CODEC/…",
    help="Compare plans of these codecs too: nearest:levels=7/topk+bf16@100/randomk. Without @CF, at all CFs.",
)
@click.option(
    "--policy",
    callback=_policy,
    metavar="POLICY",
    help="Policy: gravac:epsilon=0.3, static:cf=100, … [as recorded].",
)
@click.option(
    "--recorded-on",
    callback=quantities.single(quantities.network),
    metavar="RATE[,TIME]",
    help="Network on which the trace was recorded, if known: 200Mbit,100us [fitted].",
)
@json_option
def whatif(trace: Path, as_json: bool, **question: Any) -> None:
    """Predict from TRACE the step time elsewhere, the best plan, and the decisions of a policy.

    The best plan (codec and CF) has the highest useful throughput: samples per second times statistical efficiency.

    TRACE is the journal of a job, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs. A model of the step
    time is fitted to its windows: compute, encoding and decoding, network, and overlap with backward. Every prediction
    has an interval, and the output lists what the trace does not determine. Traces with more CFs, including dense, give
    better predictions.

    \b
    Examples:
      gravac whatif journal.jsonl --link 1Gbit,50us --ranks 64
      gravac whatif journal.jsonl --link 100M,1G,10G --ranks 2..1024
      gravac whatif journal.jsonl --link 100M --policy gravac:epsilon=0.2 --compressor topk+int8
    """
    answer = _answered(trace, question)
    if as_json:
        click.echo(json.dumps(answer))
        return
    show(answer, printer())


def _answered(trace: Path, question: dict[str, Any]) -> dict[str, Any]:
    with needing_torch("predictions need"):
        from gravac_controller.cli.whatif.answer import Unanswerable, WhatIfQuestion, answer
    if question["compressor"] is not None:
        _check_codec(question["compressor"], "--compressor")
    for codec in question["codecs"]:
        _check_codec(split_plan(codec)[0], "--codecs")
    try:
        return answer(read_trace(active_part(trace)), str(trace), WhatIfQuestion(**question))
    except TraceError as error:
        raise CannotUse(printable(str(error))) from None
    except Unanswerable as error:
        raise CannotUse(printable(f"{trace}: {error}")) from None


def _check_codec(text: str, option: str) -> None:
    from gravac.predict.exchange import codec_of

    try:
        known = codec_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    if known is None:
        raise click.BadParameter(
            f"the payload of {text!r} depends on the shapes of the parameters, which traces do not have; choose a "
            "compressor from `gravac codecs`",
            param_hint=option,
        )
