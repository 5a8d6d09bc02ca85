"""docs/metrics.md, made from the code: python -m tools.pages.metrics > docs/metrics.md."""

from collections.abc import Iterable, Mapping

from gravac_controller.metrics.definitions import JobMetric
from gravac_controller.metrics.service import SERVICE, ServiceMetric
from gravac_controller.metrics.table import TABLE

HEAD = """# Metrics

```sh
curl -sf http://127.0.0.1:8756/metrics
```

`tools/pages/metrics.py` makes this page from the code, and a test fails when it is out of date.
[monitoring.md](monitoring.md) shows how to scrape the metrics, and has dashboards and alerts.

Names follow Prometheus' rules: base units, `_total` on counters, ratios from 0 to 1, and Unix time instead of ages. An
unknown value has no sample. Agents report once per window. Gauges describe the last window. Counters are sums over the
journal and continue after a restart of the controller.

## Of a job

Each metric also has the label `job_name`, because Prometheus adds `job` to every target.

"""
SERVICE_HEAD = """
## Of the controller

These count from the start of the controller.

"""
PROCESS = """
On Linux there are also the process metrics of every Prometheus client: `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds`,
`process_start_time_seconds`.

## How many series, how long a scrape

A job has about 60 series and the controller 100. Series per rank (label `rank`) exist only for jobs of up to 256
ranks, and for 4,096 ranks in total. Larger jobs have the minimum, median and maximum over ranks, and
`/v1/jobs/{job}/ranks` has each rank. A job is removed after a day without reports.

This is the cost of one scrape (`python lab/benchmarks/scrape.py`, 2026-11-29, one core of an AMD EPYC under other
load). All but the last column runs in a thread, concurrently with the requests of agents:

| jobs | ranks each | series | size | CPU time | of which on the event loop |
|---|---|---|---|---|---|
| 1 | 2 | 56 | 8 kB | 0.4 ms | 0.0 ms |
| 1 | 256 | 310 | 28 kB | 2.6 ms | 0.1 ms |
| 1 | 4,096 | 54 | 8 kB | 0.8 ms | 0.0 ms |
| 16 | 256 | 4,960 | 391 kB | 40.9 ms | 0.6 ms |
| 1,000 | 2 | 56,000 | 3,446 kB | 492.9 ms | 18.0 ms |

## What is not there, and why

"""
ABSENT: Mapping[str, str] = {
    "histogram of step times": "reports have mean and medians of a window, not single steps: `gravac_step_seconds`",
    "delay of a decision": "the duration of `POST /v1/jobs/{job}/windows`: "
    "`gravac_http_request_duration_seconds`",
    "outcome of windows (partial)": "ranks gather their rows in a collective, so a window is complete or missing: "
    '`gravac_events_total{kind="gap"}`; refused ones are in `gravac_reports_rejected_total`',
    "number of reports": "the requests by route: `gravac_http_request_duration_seconds_count`",
    "number of fallbacks by reason": "agents report that they fell back, with the reason as text: "
    '`gravac_events_total{kind="fallback"}`, `gravac_job_phase{phase="fallback"}`',
    "straggler": "the slowest rank's own work by that of the median rank: the recording rule "
    "`job_name:gravac_straggler:ratio`",
    "GraVAC's T_comp": "`gravac_samples_per_second * gravac_gain_ratio`",
    "gain and efficiency of each plan, batch bound": "on the live page and in the REST API",
    "non-finite values by place": 'only gradients are checked: `gravac_faulty_steps_total{reason="nonfinite"}`',
    "last report": "one report from rank 0 has the rows of all ranks; a silent job is stale: `gravac_job_state`",
    "an operator's order": '`gravac_decision_info{reason=~"pinned|paused"}`',
    "open pages": 'beyond the limit they are refused: `gravac_reports_rejected_total{reason="too_many_streams"}`',
    "lost ranks": "a lost rank stops the training, which makes the job stale; the two look the same here",
    "dropped records of the trace": "no record is dropped: a report that cannot be written is refused "
    '(`gravac_reports_rejected_total{reason="journal"}`) and sent again',
    "the reason of a decision as text": "labels are for small sets of values: `gravac_decision_info` has the rule; "
    "the sentence is on the live page and in the REST API",
    "torch's version, topology": "the controller runs without torch; `/v1/jobs/{job}` has both, in "
    "`spec.environment`",
    "the agent's own endpoint": "the trainer opens no port; its CPU time is `gravac_agent_cpu_ratio`",
}


def page() -> str:
    """The page."""
    absent = "".join(f"- {what}: {why}.\n" for what, why in ABSENT.items())
    return HEAD + _table(TABLE) + SERVICE_HEAD + _table(SERVICE) + PROCESS + absent


def _table(metrics: Iterable[JobMetric | ServiceMetric]) -> str:
    lines = ["| Metric | Kind | Labels | Meaning |", "|---|---|---|---|"]
    for metric in metrics:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines.append(f"| `{name}` | {metric.type} | {_code(metric.labels)} | {metric.help} |")
    return "\n".join(lines) + "\n"


def _code(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


if __name__ == "__main__":
    print(page(), end="")
