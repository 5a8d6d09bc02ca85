"""Predictions from a trace as plain data, for ``--json`` and the tables."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gravac import policies
from gravac.collectives import Network
from gravac.policies.auto.plans import read, size_of
from gravac.policies.base import Policy
from gravac.predict import (
    GainUnknown,
    Prediction,
    Predictor,
    Recording,
    Scenario,
    SimulatedRun,
    UnknownSizes,
    best,
    simulate,
)
from gravac.predict.advice import usual_plans
from gravac.predict.exchange import Volume, codec_of, reached
from gravac.predict.levels import Levels
from gravac.predict.samples import tells_network
from gravac.predict.timemodel import CODING_POWER
from gravac.traces import Line, TraceError

FACTORS = (1.0, 4.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
STRETCHES = 40
"""Maximum number of reported changes of a policy's path."""


class Unanswerable(ValueError):
    """The trace has too little data for a prediction. The message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class WhatIfQuestion:
    """The options of the command. None: as recorded. ``link``: bandwidths, and the latency."""

    link: tuple[list[float], float | None] | None = None
    ranks: list[int] | None = None
    compressor: str | None = None
    codecs: tuple[str, ...] = ()
    policy: str | None = None
    recorded_on: tuple[float, float | None] | None = None


def answer(lines: Iterable[Line], path: str, question: WhatIfQuestion) -> dict[str, Any]:
    """Answer the question. Raises Unanswerable, and TraceError from ``lines``."""
    try:
        recording = Recording.from_trace(lines)
        levels, known = recording.levels, None
        if question.recorded_on is not None:
            bits, delay = question.recorded_on
            known = Network(
                latency_seconds=5e-5 if delay is None else delay, bytes_per_second=bits / 8 / levels.ranks
            )
        if known is None and question.link is None:
            check_network(recording, "--recorded-on")
        predictor = Predictor([(recording, known)])
        policy = (
            policies.build(recording.spec.policy)
            if question.policy is None
            else policies.parse(question.policy)
        )
        scenarios = [
            _scenario(predictor, place, policy, _places(predictor, place, policy, question))
            for place in _asked(predictor, question)
        ]
    except TraceError:
        raise
    except ValueError as error:
        raise Unanswerable(str(error)) from None
    recorded = predictor.scenario()
    return {
        "trace": path,
        "recorded": {
            "job": recording.spec.job,
            "windows": recording.windows,
            "ranks": recorded.ranks,
            "elements": recording.elements,
            "compressor": recorded.compressor,
            "sent": [
                {"codec": codec, "cf": cf, "steps": steps}
                for (codec, cf), steps in recording.sent.most_common()
            ],
            "optimizer_kind": recording.spec.optimizer_kind,
            "policy": recording.spec.policy.name,
            "seconds": recording.seconds,
            "samples": recording.samples,
            "useful_samples": recording.useful_samples,
            **_network(recorded.network, levels),
            "hosts": recording.spec.hosts and recording.spec.hosts.model_dump(),
            "levels": levels.words(recorded.ranks, recording.elements),
        },
        "model": {
            **asdict(predictor.fit.model),
            "coding_power": CODING_POWER,
            "spread": predictor.fit.spread,
            "error": predictor.error,
        },
        "policy": policy.spec().model_dump(mode="json"),
        "by_gain": _by_gain(policy),
        "scenarios": scenarios,
        "notes": recording.notes,
    }


def check_network(recording: Recording, option: str) -> None:
    """Raise ValueError, naming the ``option`` that helps, where a trace does not tell how long other bytes take."""
    if not tells_network(recording):
        raise ValueError(
            "all its steps sent the same amount, and it does not name its network, so it does not tell how long other "
            f"bytes take: name the network, as in {option} 1gbit, or record a run with policy auto"
        )


def _by_gain(policy: Policy) -> bool:
    """Return whether the policy has a least gain at which a step is compressed."""
    return bool(policy.spec().settings.get("epsilon"))


def _asked(predictor: Predictor, question: WhatIfQuestion) -> list[Scenario]:
    recorded = predictor.scenario()
    places = [recorded.network]
    if question.link is not None:
        bits, delay = question.link
        delay = recorded.network.latency_seconds if delay is None else delay
        rates = [rate / 8 / predictor.recording.levels.ranks for rate in bits]
        places = [replace(recorded.network, latency_seconds=delay, bytes_per_second=rate) for rate in rates]
    return [
        replace(recorded, network=place, ranks=ranks, compressor=question.compressor or recorded.compressor)
        for place in places
        for ranks in question.ranks or [recorded.ranks]
    ]


Places = list[tuple[Scenario, list[float]]]
"""Codecs in one scenario, each with the CFs to compare; dense is CF 1 of the first."""


def _places(predictor: Predictor, scenario: Scenario, policy: Policy, question: WhatIfQuestion) -> Places:
    """The plans to compare: of the compressor, of the codecs asked for, and of a policy that chooses among plans.

    Of a policy that is always dense, those that `auto` would choose from.
    """
    own = scenario.compressor
    found = {own: {1.0}}
    space = () if question.codecs else policy.fitted(predictor.recording.spec).plans(own)
    if (
        not space
        and question == WhatIfQuestion(recorded_on=question.recorded_on)
        and policy.ladder() == (1.0,)
    ):
        space = usual_plans(own, predictor.recording.spec.optimizer_kind)
    for plan in space:
        if plan.codec is None or codec_of(plan.codec) is not None:
            found.setdefault(plan.codec or own, set()).add(plan.cf)
    cfs = _factors(predictor, question)
    if not space:
        found[own].update(cfs)
    for text in question.codecs:
        codec = text.replace(";", ",")
        if "@" in text or size_of(codec) is not None:
            plan = read(text)
            found.setdefault(str(plan.codec), set()).add(plan.cf)
        else:
            found.setdefault(codec, set()).update(cf for cf in cfs if cf > 1.0)
    return [
        (replace(scenario, compressor=codec), sorted({reached(codec, cf) for cf in cfs}))
        for codec, cfs in found.items()
    ]


def _factors(predictor: Predictor, question: WhatIfQuestion) -> list[float]:
    """Return the CFs to compare: the recorded and some usual ones.

    For an aggregator with several rounds, only the recorded CFs can be predicted.
    """
    recorded = {seen.cf for seen in predictor.recording.observations if seen.codec is None}
    predictable = codec_of(question.compressor or predictor.recording.spec.compressor) is not None
    return sorted({1.0, *(FACTORS if predictable else ()), *recorded})


def _scenario(predictor: Predictor, scenario: Scenario, policy: Policy, places: Places) -> dict[str, Any]:
    predictions = [predictor.predict(place, cf) for place, cfs in places for cf in cfs]
    chosen = best(predictions)
    path, problem = _walked(predictor, scenario, policy)
    terms, levels = predictor.fit.model, predictor.recording.levels
    return {
        **_network(scenario.network, levels),
        "ranks": scenario.ranks,
        "compressor": scenario.compressor,
        "factors": [
            _factor(each) | _transfers(each.volume, terms.transfer_seconds(each.volume, scenario.network))
            for each in predictions
        ],
        "best_codec": None if chosen is None else chosen.codec,
        "best_cf": None if chosen is None else chosen.cf,
        "path": path,
        "path_unknown": problem,
        "cannot_know": predictor.unknowns(places, _by_gain(policy)),
    }


def _walked(
    predictor: Predictor, scenario: Scenario, policy: Policy
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the policy's path, or the reason why it cannot be predicted."""
    recording = predictor.recording
    samples = float(recording.samples or recording.windows * recording.spec.window_steps * recording.ranks)
    useful = recording.useful_samples or samples
    try:
        return _path(simulate(predictor, scenario, policy, useful, samples)), None
    except (GainUnknown, UnknownSizes) as error:
        return None, str(error)


def _network(network: Network, levels: Levels) -> dict[str, float]:
    """Return a network by its links, of which a host has one where its ranks divide gradients."""
    return {
        "bandwidth_bits_per_second": 8 * network.bytes_per_second * levels.ranks,
        "latency_seconds": network.latency_seconds,
    }


def _transfers(volume: Volume, whole: float) -> dict[str, float]:
    """Return how long the exchange takes inside a host and between hosts, also behind backward."""
    return {"inside_seconds": volume.inside_seconds, "between_seconds": whole - volume.inside_seconds}


def _factor(prediction: Prediction) -> dict[str, Any]:
    learned = prediction.efficiency
    return {
        "codec": prediction.codec,
        "cf": prediction.cf,
        "step_seconds": prediction.step.seconds,
        "low_seconds": prediction.low,
        "high_seconds": prediction.high,
        **{f"{name}_seconds": value for name, value in asdict(prediction.step).items()},
        "payload_bytes": prediction.volume.payload_bytes,
        "link_bytes": prediction.volume.link_bytes,
        "collective": prediction.volume.collective,
        "gain": prediction.gain.likely,
        "gain_low": prediction.gain.low,
        "gain_high": prediction.gain.high,
        "gain_from": prediction.gain.why,
        "samples_per_second": prediction.samples_per_second,
        "efficiency": None if learned is None else learned.likely,
        "efficiency_low": None if learned is None else learned.low,
        "efficiency_high": None if learned is None else learned.high,
        "useful_samples_per_second": prediction.useful_samples_per_second,
        "compression_throughput": prediction.compression_throughput,
    }


def _path(path: SimulatedRun) -> dict[str, Any]:
    settled = path.settled
    return {
        "settled_codec": settled.codec,
        "settled_cf": settled.cf,
        "settled_step_seconds": settled.step_seconds,
        "reason": settled.decision.reason,
        "seconds_to_samples": path.seconds_to_samples,
        "seconds_to_useful_samples": path.seconds_to_useful_samples,
        "payload_bytes": path.payload_bytes,
        "changes": len(path.stretches) - 1,
        "stretches": [
            {
                "first_window": stretch.first_window,
                "windows": stretch.windows,
                "codec": stretch.codec,
                "cf": stretch.cf,
                "phase": stretch.decision.phase,
                "rule": stretch.decision.rule,
                "reason": stretch.decision.reason,
            }
            for stretch in path.stretches[:STRETCHES]
        ],
    }
