"""The dashboard: PYTHONPATH=dashboards python -m grafana.dashboard > dashboards/grafana/gravac.json."""

import json

from grafana import rows_detail, rows_quality, rows_state
from grafana.model import SOURCE, Dashboard, Json

OF_JOB = 'job_name="$job_name"'
VARIABLES: list[Json] = [
    {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
    {
        "type": "query",
        "name": "job_name",
        "label": "Job",
        "datasource": SOURCE,
        "query": {"query": "label_values(gravac_job_info, job_name)", "refId": "job_name"},
        "refresh": 2,
        "sort": 1,
    },
    {
        "type": "query",
        "name": "rank",
        "label": "Rank",
        "datasource": SOURCE,
        "query": {
            "query": f"label_values(gravac_rank_relative_speed_ratio{{{OF_JOB}}}, rank)",
            "refId": "rank",
        },
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    },
    {
        "type": "textbox",
        "name": "page",
        "label": "Controller",
        "description": "Address of the controller for your browser, used in links.",
        "query": "http://127.0.0.1:8756",
    },
]
ANNOTATIONS: list[Json] = [
    {
        "name": "New epochs",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": f"changes(gravac_decision_epoch{{{OF_JOB}}}[1m]) > 0",
        "titleFormat": "The decision changed",
    },
    {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f'ALERTS{{alertstate="firing", {OF_JOB}}}',
        "titleFormat": "{{alertname}}",
    },
]
LINKS: list[Json] = [
    {
        "title": "Live page of this job, with reasons",
        "type": "link",
        "url": "${page}/#job=${job_name}",
        "targetBlank": True,
        "icon": "external link",
    }
]


def dashboard() -> Dashboard:
    """The dashboard, question by question."""
    return Dashboard(
        uid="gravac",
        title="gravac",
        about="Adaptive gradient compression: what is sent, why, what it saves, and the accuracy risk.",
        rows=(*rows_state.ROWS, *rows_quality.ROWS, *rows_detail.ROWS),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
        links=LINKS,
    )


def text() -> str:
    """The file, byte for byte."""
    return json.dumps(dashboard().json(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
