"""/metrics: scrapes show what was posted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gravac.policies import StaticPolicy
from gravac.protocol import End, InsideHosts, WindowAnswer
from gravac.signals import figures, risk
from gravac.signals.loss_slope import LossSlope
from gravac_controller.metrics.table import TABLE
from tests.support.in_process import InProcess, post, register, run
from tools.harness.builders import Trainer, spec, two_hosts

Samples = dict[tuple[str, ...], float]


def scrape(app: InProcess, path: str = "/metrics") -> dict[str, Samples]:
    """Return samples by name and label values (without the job's name)."""
    response = app.client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = tuple(value for name, value in sample.labels.items() if name != "job_name")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_values_are_those_of_the_reports(app: InProcess) -> None:
    decision = register(app).decision
    trainer, reports = Trainer(), []
    for _ in range(9):
        reports.append(trainer.report(decision))
        answer = post(app, "/v1/jobs/job/windows", reports[-1])
        decision = WindowAnswer.model_validate_json(answer).decision
    last = reports[-1]
    seen = scrape(app)
    learned = figures.efficiency(last, "unknown", "topk")
    assert learned is not None
    assert learned.low < learned.likely < 1.0
    single: dict[str, float | None] = {
        "gravac_compression_factor": last.cf,
        "gravac_wire_compression_factor": last.dense_bytes / last.payload_bytes,
        "gravac_decision_epoch": decision.epoch,
        "gravac_gain_threshold_ratio": decision.epsilon,
        "gravac_steps_total": 450,
        "gravac_gradient_dense_bytes_total": sum(report.dense_bytes for report in reports),
        "gravac_gradient_payload_bytes_total": sum(report.payload_bytes for report in reports),
        "gravac_gain_ratio": figures.gain(last),
        "gravac_backlog": figures.backlog(last),
        "gravac_step_seconds": figures.step_seconds(last),
        "gravac_training_seconds_total": sum(report.seconds for report in reports),
        "gravac_samples_per_second": figures.samples_per_second(last),
        "gravac_useful_samples_per_second": figures.useful_samples_per_second(last, "unknown", "topk"),
        "gravac_loss": last.loss,
        "gravac_baseline_step_seconds": 0.5,
        "gravac_baseline_exposed_seconds": 0.4,
        "gravac_agent_cpu_ratio": 0.25 / 9.75,
    }
    assert {name: seen[name][()] for name in single} == pytest.approx(single)
    for phase in ("data_wait", "compute", "compress", "communicate", "decompress"):
        step = getattr(last.phases, phase) / 50
        assert seen["gravac_step_phase_seconds"][(phase,)] == pytest.approx(step)
    expected = {("low",): learned.low, ("likely",): learned.likely, ("high",): learned.high}
    assert seen["gravac_statistical_efficiency_ratio"] == pytest.approx(expected)
    assert seen["gravac_job_state"] == {("running",): 1, ("stale",): 0, ("ended",): 0}
    assert seen["gravac_jobs"] == seen["gravac_job_state"] | {("unreadable",): 0}
    assert {phase for (phase,), on in seen["gravac_job_phase"].items() if on} == {last.phase}
    losses = LossSlope()
    for one in reports:
        losses.add(one.last_step, figures.steps(one), one.loss or 0.0)
    judged = risk.judge(last, decision.epsilon, "unknown", "topk", loss_slope=losses.slope()).level
    assert losses.slope() is not None
    assert {level for (level,), on in seen["gravac_risk_level"].items() if on} == {judged}
    assert seen["gravac_faulty_steps_total"] == {("nonfinite",): 0, ("failed",): 0}
    assert seen["gravac_decision_info"] == {("topk", decision.rule): 1}
    assert {kind: count for (kind,), count in seen["gravac_events_total"].items() if count} == {
        "registered": 1
    }
    own = {("minimum",): 6.75 / 50, ("median",): 7.25 / 50, ("maximum",): 7.75 / 50}
    assert seen["gravac_own_work_seconds"] == pytest.approx(own)
    assert seen["gravac_rank_relative_speed_ratio"] == pytest.approx({("0",): 1.0, ("1",): 6.75 / 7.75})
    useful = {
        (f"{candidate.cf:g}", "topk"): candidate.useful_samples_per_second
        for candidate in decision.candidates
        if candidate.useful_samples_per_second is not None
    }
    assert useful
    assert seen["gravac_candidate_useful_samples_per_second"] == pytest.approx(useful)


def test_both_levels_of_links_have_series_where_there_are_two(app: InProcess) -> None:
    hosts = two_hosts(4, 1e7)
    decision, trainer = register(app, hosts=hosts).decision, Trainer()
    assert "gravac_network_bytes_total" in (seen := scrape(app))
    assert set(seen["gravac_network_bytes_total"].values()) == {0.0}
    inside = InsideHosts(sent_bytes=3_000_000, seconds=0.5)
    reports = [trainer.report(decision, inside=inside) for _ in range(2)]
    for report in reports:
        post(app, "/v1/jobs/job/windows", report)
    seen = scrape(app)
    payload = sum(report.payload_bytes for report in reports)
    assert seen["gravac_network_bytes_total"] == {("inside",): 6e6, ("between",): payload}
    waited = sum(report.phases.communicate for report in reports)
    assert seen["gravac_network_seconds_total"] == pytest.approx(
        {("inside",): 1.0, ("between",): waited - 1.0}
    )
    totals = app.client.get("/v1/jobs/job").json()["totals"]
    assert (totals["inside_bytes"], totals["inside_seconds"]) == (6_000_000, 1.0)
    assert totals["exposed_seconds"] == pytest.approx(waited)
    register(app, job="flat")
    assert len(scrape(app)["gravac_network_seconds_total"]) == 2


def test_counters_survive_a_restart(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    run(app, Trainer(), register(app).decision, 7)
    before = scrape(app, "/v1/jobs/job/metrics")
    app.close()
    assert before
    assert scrape(open_app(), "/v1/jobs/job/metrics") == before


def test_refusals_are_counted_by_reason(app: InProcess) -> None:
    decision = register(app).decision
    report = Trainer().report(decision)
    post(app, "/v1/jobs/job/windows", report)
    post(app, "/v1/jobs/job/windows", report.model_copy(update={"samples": 1}), status=409)
    post(app, "/v1/jobs/job/windows", report.model_copy(update={"incarnation": "zombie"}), status=409)
    post(app, "/v1/jobs/nobody/end", End(incarnation="x", windows=0, steps=0, message=""), status=404)
    app.client.post("/v1/jobs", content="{}", headers={"Content-Type": "application/json"})
    app.client.post(
        "/v1/jobs", content="{}", headers={"Content-Type": "application/json", "Host": "evil.example"}
    )
    rejected = scrape(app)["gravac_reports_rejected_total"]
    assert {reason: count for (reason,), count in rejected.items() if count} == {
        "conflict": 1,
        "wrong_incarnation": 1,
        "unknown_job": 1,
        "invalid": 1,
        "foreign_host": 1,
    }
    assert ("unauthorized",) in rejected  # known in advance, so exported as 0


def test_the_oldest_jobs_that_fit_have_series_per_rank(open_app: Callable[..., InProcess]) -> None:
    app = open_app(metrics_max_rank_series=5)
    for job, ranks in (("m", 3), ("a", 3), ("z", 2)):
        run(app, Trainer(job, world_size=ranks), register(app, job=job, world_size=ranks).decision, 1)
    text = app.client.get("/metrics").text
    named = {
        sample.labels["job_name"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gravac_rank_relative_speed_ratio"
    }
    assert named == {"m", "z"}


def test_events_are_counted(app: InProcess) -> None:
    decision = register(app).decision
    decision = run(app, Trainer(), decision, 1)
    run(app, Trainer(window=4), decision, 1)
    seen = scrape(app)
    assert seen["gravac_steps_total"][()] == 100
    assert seen["gravac_events_total"][("gap",)] == 1


def test_discovery_leads_to_every_metric_once(open_app: Callable[..., InProcess]) -> None:
    app = open_app(allowed_hosts=("controller",))
    for job in ("b", "a"):
        run(app, Trainer(job), register(app, job=job).decision, 1)
    answer = app.client.get("/v1/sd/prometheus", headers={"Host": "controller:8756"})
    assert answer.headers["content-type"] == "application/json"
    groups = answer.json()
    assert [group["targets"] for group in groups] == [["controller:8756"]] * 3
    assert [group["labels"].get("job_name") for group in groups] == [None, "a", "b"]
    assert groups[1]["labels"]["__meta_gravac_state"] == "running"
    found: list[str] = []
    for group in groups:
        text = app.client.get(group["labels"]["__metrics_path__"]).text
        found += series(text)
    assert sorted(found) == sorted(series(app.client.get("/metrics").text))


def series(text: str) -> list[str]:
    """Return names and labels of all samples except those that every request changes."""
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    return [line for line in lines if not line.startswith("gravac_http_")]


def test_rules_that_a_plugins_policy_names_count_as_other() -> None:
    """Else anyone's policy could make any number of series."""
    rows = {row.name: row for row in TABLE}
    first = StaticPolicy(cf=2).start().decision
    for rule, label in (("start", "start"), ("theirs", "other")):
        decision = first.model_copy(update={"rule": rule})
        picture: Any = SimpleNamespace(decision=decision, spec=spec())
        assert dict(rows["gravac_decision_info"].samples(picture)) == {(label, "topk"): 1}
