"""Kinds of panels that are used more than once."""

from grafana.model import Json, Panel, Query


def stat(title: str, about: str, expr: str, *, legend: str = "", width: int = 4, **more: object) -> Panel:
    """One figure. With a legend, the panel shows the name of the series instead of its value."""
    options = {"textMode": "name"} if legend else {}
    return Panel(
        title=title,
        kind="stat",
        about=about,
        queries=[Query(expr=expr, legend=legend)],
        width=width,
        height=4,
        options=options,
        **more,  # type: ignore[arg-type]
    )


def of_job(metric: str, more: str = "") -> str:
    """A metric of the selected job."""
    return f'{metric}{{job_name="$job_name"{more}}}'


def named(name: str, color: str) -> Json:
    """Draw the series ``name`` in ``color``."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
    }


def timeline(title: str, about: str, expr: str, legend: str) -> Panel:
    """Which of several states is in force over time, a row for each."""
    yes = {"type": "value", "options": {"1": {"text": "yes", "color": "blue"}}}
    return Panel(
        title=title,
        kind="state-timeline",
        about=about,
        queries=[Query(expr=expr, legend=legend)],
        width=12,
        minimum=None,
        mappings=[yes],
        custom={"lineWidth": 0, "fillOpacity": 80},
    )


def listing(title: str, about: str, names: dict[str, str], *queries: str, width: int = 8) -> Panel:
    """A table that joins the last values of several queries. ``names``: headings of labels, and of ``Value #A``, …."""
    hidden = dict.fromkeys(("Time", "job", "job_name", "instance", "__name__"), True)
    return Panel(
        title=title,
        kind="table",
        about=about,
        queries=[Query(expr=expr) for expr in queries],
        width=width,
        decimals=3,
        transformations=[
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names}},
        ],
    )
