"""Predictions of ``gravac whatif`` on a terminal: a table of plans for one scenario, a row per scenario for a sweep."""

from typing import Any

from rich.console import Console

from gravac.wording import format_percent, format_rate, plan_in_words, printable
from gravac_controller.cli.wording import Listing, factor, number, size, spread
from gravac_controller.cli.wording import seconds as brief

MOST_SENT = 6
"""Plans of a trace that are named."""


def show(answer: dict[str, Any], console: Console) -> None:
    """Print the whole answer."""
    _recorded(answer, console)
    scenarios = answer["scenarios"]
    if len(scenarios) == 1:
        _factors(scenarios[0], console, answer["by_gain"], bool(answer["recorded"]["hosts"]))
        _path(answer, scenarios[0], console)
    else:
        _sweep(scenarios, console)
    unknown = list(dict.fromkeys(line for scenario in scenarios for line in scenario["cannot_know"]))
    if unknown:
        console.print("Not determined by this trace, with the assumption made:", style="bold")
        for line in unknown:
            console.print(f"- {printable(line)}")
    for note in answer["notes"]:
        console.print(f"note: {printable(note)}")


def delay(value: float) -> str:
    """Return a latency: 50 µs."""
    return f"{value * 1e6:.3g} µs" if value < 1e-3 else f"{value * 1e3:.3g} ms"


def _recorded(answer: dict[str, Any], console: Console) -> None:
    was, model = answer["recorded"], answer["model"]
    console.print(
        f"{printable(was['job'])}: {was['windows']} windows of {was['ranks']} ranks, {was['elements']:,} elements, "
        f"policy {was['policy']}, on {format_rate(was['bandwidth_bits_per_second'])}"
    )
    if was["levels"]:
        console.print(was["levels"])
    steps = sum(plan["steps"] for plan in was["sent"]) or 1
    console.print(
        "Sent: "
        + ", ".join(
            f"{plan_in_words(plan['codec'], plan['cf'])} in {format_percent(plan['steps'] / steps)} of the steps"
            for plan in was["sent"][:MOST_SENT]
        )
        + (f", and {len(was['sent']) - MOST_SENT} more plans" if len(was["sent"]) > MOST_SENT else "")
    )
    console.print(
        f"A step: {brief(model['compute_seconds'])} compute, {brief(model['compress_seconds'])} + "
        f"{model['compress_seconds_per_coded'] * 1e9:.2g} ns · n / CF^{model['coding_power']:g} encoding n elements, "
        f"{model['decompress_seconds_per_coded'] * 1e9:.2g} ns · n / CF^{model['coding_power']:g} decoding, "
        f"{brief(model['waiting_seconds'])} waiting; "
        f"up to {brief(model['hidden_seconds'])} of a transfer hidden behind backward. "
        f"Fit error {model['spread']:.1%}, prediction interval ±{2 * model['error']:.0%}."
    )
    console.print()


def _where(scenario: dict[str, Any]) -> str:
    return f"{format_rate(scenario['bandwidth_bits_per_second'])}, {delay(scenario['latency_seconds'])}"


def _factors(scenario: dict[str, Any], console: Console, gains: bool, levels: bool) -> None:
    rows = scenario["factors"]
    several = len({row["codec"] for row in rows}) > 1
    codec = "" if several else f", {printable(scenario['compressor'])}"
    console.print(f"On {_where(scenario)}, {scenario['ranks']} ranks{codec}:", style="bold")
    parts = ("Inside", "Between") if levels else ()
    heads = ("Step", "Interval", "Coding", "Network", *parts, "Payload", "Samples/s", "Useful/s", "η")
    table = Listing(
        ("Plan" if several else "CF", "Collective"),
        (*heads, *(("Gain", "T_comp") if gains else ())),
        leaving=(
            "Collective",
            "Coding",
            "Samples/s",
            "Payload",
            *parts,
            "Network",
            "Interval",
            "Gain",
            "T_comp",
            "η",
        ),
    )
    for row in rows:
        name = plan_in_words(row["codec"], row["cf"]) if several else factor(row["cf"])
        table.add_row(
            name + (" *" if _is_best(row, scenario) else ""),
            row["collective"],
            brief(row["step_seconds"]),
            f"{brief(row['low_seconds'])} – {brief(row['high_seconds'])}",
            brief(row["compress_seconds"] + row["decompress_seconds"]),
            brief(row["exposed_seconds"]),
            *(brief(row[f"{part.lower()}_seconds"]) for part in parts),
            size(row["payload_bytes"]),
            number(row["samples_per_second"]),
            number(row["useful_samples_per_second"]),
            spread(row["efficiency"], row["efficiency_low"], row["efficiency_high"]),
            *((number(row["gain"]), number(row["compression_throughput"])) if gains else ()),
        )
    console.print(table)
    console.print(
        "* the best: the highest useful throughput (samples/s · η). η: statistical efficiency, the steps that dense "
        "needs / the steps that the plan needs, and its range."
        + (" T_comp: samples/s · gain, GraVAC's." if gains else "")
        + (" Inside, Between: a host, and hosts; also what hides behind backward." if levels else ""),
        style="dim",
    )
    console.print()


def _is_best(row: dict[str, Any], scenario: dict[str, Any]) -> bool:
    return (row["codec"], row["cf"]) == (scenario["best_codec"], scenario["best_cf"])


def _plan(codec: str, cf: float, scenario: dict[str, Any]) -> str:
    """Return a plan; its codec is named where it is not the scenario's."""
    return factor(cf) if codec == scenario["compressor"] else plan_in_words(codec, cf)


def _path(answer: dict[str, Any], scenario: dict[str, Any], console: Console) -> None:
    path = scenario["path"]
    console.print(f"Policy {answer['policy']['name']}:", style="bold")
    if path is None:
        console.print(f"cannot be predicted: {printable(scenario['path_unknown'])}.")
        console.print()
        return
    table = Listing(("Window", "Plan", "Phase", "Rule"), prose="Reason", leaving=("Phase", "Rule"))
    for row in path["stretches"]:
        table.add_row(
            str(row["first_window"]),
            plan_in_words(row["codec"], row["cf"]),
            row["phase"],
            row["rule"],
            printable(row["reason"]),
        )
    console.print(table)
    was = answer["recorded"]
    useful, all_samples = path["seconds_to_useful_samples"], f"samples ({was['samples']:,})"
    if useful is None:
        arrival = (
            f"It reaches the {all_samples} of the trace after {_long(path['seconds_to_samples'])} and "
            f"{size(path['payload_bytes'])} of payload per rank."
        )
    else:
        arrival = (
            f"It reaches the useful samples of the trace (samples · η: {number(was['useful_samples'])}) after "
            f"{_long(useful)} and {size(path['payload_bytes'])} of payload per rank, and its {all_samples} after "
            f"{_long(path['seconds_to_samples'])}."
        )
    console.print(f"{arrival} Recorded: {_long(was['seconds'])}.")
    console.print()


def _sweep(scenarios: list[dict[str, Any]], console: Console) -> None:
    heads = (
        "Ranks",
        "Dense",
        "Best plan",
        "Step",
        "Interval",
        "Useful/s",
        "vs dense",
        "Final plan",
        "Time to target",
    )
    leaving = ("Interval", "Final plan", "Time to target", "Step", "Dense")
    table = Listing(("Network",), heads, leaving=leaving)
    for scenario in scenarios:
        dense = scenario["factors"][0]
        best = next((row for row in scenario["factors"] if _is_best(row, scenario)), None)
        path = scenario["path"]
        useful = None if best is None else best["useful_samples_per_second"]
        table.add_row(
            _where(scenario),
            str(scenario["ranks"]),
            brief(dense["step_seconds"]),
            "–" if best is None else _plan(best["codec"], best["cf"], scenario),
            "–" if best is None else brief(best["step_seconds"]),
            "–" if best is None else f"{brief(best['low_seconds'])} – {brief(best['high_seconds'])}",
            number(useful),
            "–" if not useful else f"{useful / dense['samples_per_second']:.2f}x",
            "–" if path is None else _plan(path["settled_codec"], path["settled_cf"], scenario),
            "–" if path is None else _long(path["seconds_to_useful_samples"]),
        )
    console.print(table)
    console.print(
        "Best plan: the highest useful throughput (samples/s · η). vs dense: that over the samples/s of dense. Final "
        "plan: where the policy ends. Time to target: until the useful samples (samples · η) of the trace are reached.",
        style="dim",
    )
    console.print()


def _long(value: float | None) -> str:
    """Return a long duration: 42 s, 3.2 min, 5.1 h; – when unknown."""
    if value is None:
        return "–"
    for scale, unit in ((3600.0, "h"), (60.0, "min")):
        if value >= 2 * scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.1f} s"
