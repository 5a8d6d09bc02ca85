"""The last questions: which rank is slow, what exploration measured, what went wrong, steering, and the controllers."""

from grafana.model import Panel, Query, Row
from grafana.panels import listing, of_job, stat

RANKS = Row(
    title="Which rank is slow?",
    panels=[
        listing(
            "Ranks",
            "Speed of each rank's own work (fastest = 1). Only up to the controller's limit of ranks.",
            {"rank": "Rank", "Value": "Relative speed"},
            of_job("gravac_rank_relative_speed_ratio", ', rank=~"$rank"'),
        ),
        Panel(
            title="Relative speed",
            kind="timeseries",
            about="Of the selected ranks; fastest = 1.",
            queries=[
                Query(
                    expr=of_job("gravac_rank_relative_speed_ratio", ', rank=~"$rank"'), legend="rank {{rank}}"
                )
            ],
        ),
        Panel(
            title="Own work of a step",
            kind="timeseries",
            about="A step without the wait for the network: minimum, median and maximum over ranks.",
            queries=[Query(expr=of_job("gravac_own_work_seconds"), legend="{{stat}}")],
            unit="s",
        ),
        stat(
            "Straggler ratio",
            "Own work of the slowest rank over that of the median rank.",
            of_job("job_name:gravac_straggler:ratio"),
            decimals=2,
            thresholds=[(None, "green"), (1.5, "orange")],
        ),
    ],
)
SEEN = Row(
    title="What did exploration measure?",
    panels=[
        Panel(
            title="Useful samples per second, by plan",
            kind="bargauge",
            about="What the policy maximizes. It chooses the longest bar that keeps its bound. The live page also has "
            "gain and statistical efficiency of each plan.",
            queries=[
                Query(expr=of_job("gravac_candidate_useful_samples_per_second"), legend="{{codec}} · {{cf}}x")
            ],
            width=24,
        ),
    ],
)
WRONG = Row(
    title="What went wrong?",
    panels=[
        Panel(
            title="Events",
            kind="bargauge",
            about="Since the start of the job. The live page shows the messages.",
            queries=[Query(expr=of_job("gravac_events_total"), legend="{{kind}}")],
        ),
        Panel(
            title="Steps lost",
            kind="bargauge",
            about="Non-finite: a NaN or infinite gradient. Failed: compression failed. Neither changed the model.",
            queries=[
                Query(expr=of_job("gravac_faulty_steps_total"), legend="{{reason}}"),
            ],
        ),
        Panel(
            title="Requests refused",
            kind="bargauge",
            about="By all controllers, since their start.",
            queries=[Query(expr="sum by (reason) (gravac_reports_rejected_total)", legend="{{reason}}")],
        ),
    ],
)
LINKS = """\
**Steer** (where the controller was started with a control token): pin a CF, switch to dense, pause exploration or
resume, on the [live page](${page}/#job=${job_name}) or over REST ([${page}/openapi.json](${page}/openapi.json)). Every
order is journaled with the name of the operator.

**Export**: [the trace](${page}/v1/jobs/${job_name}/trace), for `gravac replay` and `gravac report`;
[decisions](${page}/v1/jobs/${job_name}/decisions) and [windows](${page}/v1/jobs/${job_name}/windows) as JSON.
"""
STEER = Row(
    title="How do I steer it and export its data?",
    panels=[Panel(title="", kind="text", about="", width=24, height=4, options={"content": LINKS})],
)
CONTROLLER = Row(
    title="How are the controllers?",
    panels=[
        Panel(
            title="Requests",
            kind="timeseries",
            about="Accepted requests per second, by status of the answer.",
            queries=[
                Query(
                    expr="sum by (instance, route, method, code) "
                    "(rate(gravac_http_request_duration_seconds_count[$__rate_interval]))",
                    legend="{{method}} {{route}} {{code}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            title="Time to decide (p99)",
            kind="timeseries",
            about="From a window to the start of the response. The window and the decision are on disk by then.",
            queries=[Query(expr="instance:gravac_decision_seconds:p99_rate5m", legend="{{instance}}")],
            unit="s",
        ),
        Panel(
            title="Memory",
            kind="timeseries",
            about="Resident memory.",
            queries=[Query(expr='process_resident_memory_bytes{job="gravac"}', legend="{{instance}}")],
            unit="bytes",
        ),
        Panel(
            title="CPU",
            kind="timeseries",
            about="Cores in use.",
            queries=[
                Query(
                    expr='rate(process_cpu_seconds_total{job="gravac"}[$__rate_interval])',
                    legend="{{instance}}",
                )
            ],
        ),
        Panel(
            title="Jobs",
            kind="bargauge",
            about="On all controllers.",
            queries=[Query(expr="sum by (state) (gravac_jobs)", legend="{{state}}")],
        ),
        stat(
            "Version",
            "Of the controllers.",
            "max by (version) (gravac_build_info)",
            legend="{{version}}",
        ),
    ],
)
ROWS = (RANKS, SEEN, WRONG, STEER, CONTROLLER)
