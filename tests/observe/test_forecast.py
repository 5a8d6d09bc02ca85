"""What steps would take elsewhere: on other networks, with more ranks, by other codecs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gravac_observe.findings.forecast import Question
from gravac_observe.findings.verdict import judge
from gravac_observe.measure import Measurement
from tests.observe.test_verdict import dense, large
from tests.support.efficiencies import fixed_efficiencies
from tests.support.profiles import MAIN, Made, of, recorded


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def test_another_network(tmp_path: Path) -> None:
    measured = large(tmp_path)
    here = judge(measured)
    slow, fast = (judge(measured, Question(bits_per_second=bits)) for bits in (1e9, 1e12))
    assert dense(slow) > 1.5 * dense(here) > dense(here) > dense(fast)
    # 100 MB all-reduced by 8 ranks at 956 Mbit/s of payload, of which 160 ms hide.
    wire = 1.75 * 100e6 / (0.956 * 125e6)
    latency = 1.4e-5 * (14 * 5 + 14)
    assert dense(slow) == pytest.approx(0.75 + wire + latency - 0.16, rel=0.01)
    assert slow.finding.sentence.startswith("Network: with 8 ranks on links of 1 Gbit/s, ")
    assert fast.finding.kind == "other"
    assert slow.forecast is not None
    assert slow.forecast.chosen.speedup > 2.0
    assert any("96 % of 1 Gbit/s is payload" in sentence for sentence in slow.assumed)
    near = judge(measured, Question(bits_per_second=1e9, latency=0.0))
    assert dense(near) == pytest.approx(dense(slow) - latency, rel=1e-3)


def test_more_ranks(tmp_path: Path) -> None:
    measured = large(tmp_path)
    few, many = (judge(measured, Question(ranks=ranks)) for ranks in (8, 64))
    assert dense(few) == pytest.approx(1.0)
    assert dense(many) > dense(few)
    assert few.forecast is not None
    assert many.forecast is not None
    assert many.forecast.error > few.forecast.error


def test_the_speed_of_codecs(tmp_path: Path) -> None:
    measured = large(tmp_path)
    slow, fast = (judge(replace(measured, encoding=seconds)) for seconds in (1.0, 1e-4))
    assert slow.forecast is not None
    assert fast.forecast is not None
    assert slow.forecast.chosen.cf == 1.0, "it takes a second to encode what is sent in a third"
    assert slow.finding.action.startswith("do not compress: ")
    assert fast.forecast.chosen.cf > 1.0
    assert "codecs encode 1000 GB/s, as gravac's kernels in the traces" in fast.assumed


def test_kernels_of_gravac_are_timed(tmp_path: Path) -> None:
    """Three of their names at least, since other programs have such names, too."""
    for names, seconds in ((("_count", "_fold"), 0.0), (("_count", "_fold", "_pack"), 30e-6)):
        made = Made.usual()
        for step in (0.0, 1000.0):
            for place, name in enumerate(names):
                made.compute(step + 900.0 + 20 * place, 10.0, name)
        assert of(tmp_path, made).encoding == pytest.approx(seconds)


def single(folder: Path, **settings: object) -> Measurement:
    """One GPU: no communication at all."""
    made = Made.usual(world=1, **settings)
    made.events = [
        event
        for event in made.events
        if "nccl" not in event["name"] and event["name"] != "record_param_comms"
    ]
    return of(folder, made)


@pytest.mark.parametrize("left", ["nothing", "losses"])
@pytest.mark.parametrize("question", [Question(), Question(ranks=16, bits_per_second=1e9)])
def test_ranks_that_exchange_no_gradient_are_named_first(
    tmp_path: Path, left: str, question: Question
) -> None:
    """As where the module within DDP is called, or its dtype changed after wrapping."""
    made = Made.usual(world=4)
    made.events = [
        event
        for event in made.events
        if "nccl" not in event["name"] and event["name"] != "record_param_comms"
    ]
    if left == "losses":
        for step in range(2):
            made.call("allreduce", 1000.0 * step + 980.0, 10.0, 1, thread=MAIN)
    found = judge(of(tmp_path, made), question)
    assert found.finding.kind == "no exchange"
    assert found.finding.sentence == "No gradient is exchanged: 4 ranks train apart in the recorded steps."
    assert "DistributedDataParallel" in found.finding.action
    assert "no_sync" in found.finding.action
    assert "profile_all_threads" in found.finding.action


def test_one_gpu_says_what_data_parallelism_would_cost(tmp_path: Path) -> None:
    measured = single(tmp_path)
    here = judge(measured)
    assert here.finding.sentence == "Not the network: nothing is communicated."
    assert "--ranks 8 --link 25gbit says what data parallelism would cost" in here.finding.action
    assert here.forecast is None
    found = judge(measured, Question(ranks=8, bits_per_second=25e9))
    assert found.finding.kind == "network"
    transfer = 1.75 * 4e6 / (0.956 * 25e9 / 8)
    messages = 1.4e-5 * (14 * 2 + 3)  # of two buckets, and of the agent
    assert dense(found) == pytest.approx(1e-3 + transfer + messages - 0.3 * 0.6e-3, rel=0.01)
    assert found.finding.sentence.startswith("Network: with 8 ranks on links of 25 Gbit/s, ")
    assert any("so the model has 1,000,000 parameters" in sentence for sentence in found.assumed)
    assert any("as no exchange was recorded" in sentence for sentence in found.assumed)
    larger = judge(measured, Question(ranks=8, bits_per_second=25e9, elements=100_000_000))
    assert dense(larger) > 10 * dense(found)


def test_what_is_missing_for_a_forecast_is_said(tmp_path: Path) -> None:
    bare = single(tmp_path, sizes=False)
    assert judge(bare, Question(ranks=8, bits_per_second=1e9)).unknown == (
        "what other plans would take: the traces do not show the size of the gradient; give it with --elements",
    )
    measured = single(tmp_path)
    assert judge(measured, Question(ranks=8)).unknown == (
        "what other plans would take: the traces show no exchange of gradients on a network; give --link",
    )


def test_sharded_gradients_are_reduce_scattered(tmp_path: Path) -> None:
    """And the weights that FSDP gathers wait as they did, or as another network lets them."""
    measured = recorded("fsdp2")
    here = judge(measured)
    assert dense(here) == pytest.approx(measured.step)
    halved = "weights are not compressed: halve them by mixed precision (param_dtype=torch.bfloat16), prefetch them, "
    assert f"; besides, {halved}" in here.finding.action or here.finding.action.startswith(halved), (
        "they are gathered in float32"
    )
    slow = judge(measured, Question(bits_per_second=1e7))
    sent = {row.pattern: row.nbytes for row in measured.rows}
    assert sent["weights"] == 2 * sent["gradients"]
    # gloo's reduce-scatter is an all-reduce: a rank sends 526 kB for gradients, and 526 kB for weights.
    assert dense(slow) > 2 * 526_336 / 1.25e6


def test_recorded_ddp_is_predicted_as_it_ran() -> None:
    measured = recorded("ddp")
    assert dense(judge(measured)) == pytest.approx(measured.step)
    assert (
        judge(measured)
        .assumed[0]
        .startswith("on a CPU, communication is exposed while no thread runs an operator")
    )


@pytest.mark.parametrize(
    ("optimizers", "kind"),
    [
        ([("AdamW", "Adam")], "adam"),
        ([("FusedLAMB",)], "adam"),
        ([("RMSprop",)], "adam"),
        ([("SGD",)], "sgd"),
        ([("Lion",)], "sign"),
        ([("Own", "AdamW", "Adam")], "adam"),
        ([("Own",)], "other"),
        ([("gravac.optim.AdamW", "AdamW", "Adam")], "adam-aged"),
        ([("AdamW", "Adam"), ("Muon",)], "matrix"),
        ([("Adam",), 0.5], "adam-low-beta"),
    ],
)
def test_the_plan_suits_the_optimizers(tmp_path: Path, optimizers: list[Any], kind: str) -> None:
    """By what gravac observe says of them, or by the name that each trace has."""
    *named, last = optimizers
    names, beta = (named, last) if isinstance(last, float) else (optimizers, None)
    said = [{"classes": list(classes), "beta": beta, "parameters": 50} for classes in names]
    hostile = ["hostile", {"classes": [7]}, {"classes": []}, {"classes": ["Muon"], "parameters": -(10**9)}]
    for about in (said, said + hostile):
        measured = replace(large(tmp_path, about={"optimizers": about}), optimizer=names[0][0])
        found = judge(measured, Question(bits_per_second=1e8))
        words = f"{names[0][0]} loses as much by compression as simulations show for {kind} (--optimizer)"
        if kind in ("sign", "other"):
            words = f"no optimizer like {names[0][0]} was simulated (--optimizer)"
            assert "expected to keep" not in found.finding.action
        assert words in found.assumed
        assert ("gravac.optim" in found.others) == (kind == "adam" and names[0][0] == "AdamW")
    if len(names) == 1 and len(names[0]) == 1 and beta is None:
        bare = judge(replace(large(tmp_path), optimizer=names[0][0]))
        assert words in bare.assumed
