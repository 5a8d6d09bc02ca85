"""The Grafana dashboard: fresh, in Grafana's own schema, laid out without overlap, and asking for what is there."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from grafana.dashboard import text
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.monitoring.shipped import DASHBOARD, asks, dashboard, known_names, names

QUESTIONS = [
    "alive",
    "Which CF",
    "save",
    "accuracy",
    "time go",
    "worth it",
    "rank is slow",
    "exploration",
    "wrong",
]
"""What the panels answer, in this order."""


def test_it_is_fresh() -> None:
    command = "PYTHONPATH=dashboards python -m grafana.dashboard > dashboards/grafana/gravac.json"
    assert DASHBOARD.read_text() == text(), command


def test_grafanas_schema_knows_every_field() -> None:
    """What its types do not know, they drop on the way through. It has no fields for Prometheus' annotations."""
    register_default_plugins()
    through = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    before, after = dict(leaves(dashboard())), dict(leaves(through))
    lost = {path for path, value in before.items() if after.get(path, "nothing") != value}
    assert {re.sub(r"\[\d+\]", "", path) for path in lost} == {".annotations.list.titleFormat"}


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from leaves(value, f"{path}.{name}")
    elif isinstance(node, list) and node:
        for number, value in enumerate(node):
            yield from leaves(value, f"{path}[{number}]")
    else:
        yield path, node


def test_panels_have_their_own_number_and_place() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 40
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24, panel["title"]
    for one, two in itertools.combinations(panels, 2):
        a, b = one["gridPos"], two["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (one["title"], two["title"])


def test_the_questions_come_in_order() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert [question for row, question in zip(rows, QUESTIONS, strict=False) if question not in row] == []


def test_every_panel_says_what_it_shows() -> None:
    for panel in dashboard()["panels"]:
        if panel["type"] not in ("row", "text"):
            assert panel["title"]
            assert panel["description"], panel["title"]
            assert panel["targets"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_queries_ask_for_what_is_there() -> None:
    unknown = {ask.panel: names(ask.expr) - known_names() for ask in asks()}
    assert not {panel: missing for panel, missing in unknown.items() if missing}
    assert all(names(ask.expr) for ask in asks())


def test_variables_are_all_there_and_all_used() -> None:
    written = DASHBOARD.read_text()
    used = {one or two for one, two in re.findall(r"\$(?:\{(\w+)\}|(\w+))", written)}
    used -= {"__all", "__rate_interval"}
    assert used == {variable["name"] for variable in dashboard()["templating"]["list"]}
    (of_jobs, of_ranks) = (
        variable["query"]["query"]
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    )
    assert names(of_jobs) | names(of_ranks) <= known_names()


def test_overrides_name_a_series_that_is_drawn() -> None:
    for panel in dashboard()["panels"]:
        legends = {target["legendFormat"] for target in panel.get("targets", ())}
        for override in panel.get("fieldConfig", {}).get("overrides", ()):
            name = override["matcher"]["options"]
            assert name in legends or legends in ({"{{state}}"}, {"{{phase}}"}, {"{{level}}"}), panel["title"]
