"""A Grafana dashboard as a few dataclasses. Panels are laid out in reading order, without counting grid units.

Unspecified fields have Grafana's defaults. Its fields: "Dashboard JSON model" in Grafana's documentation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]
Kind = Literal["bargauge", "stat", "state-timeline", "table", "text", "timeseries"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """One PromQL expression. ``legend``: name of each series, ``{{label}}`` replaced."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What is drawn. ``unit``: Grafana's id of one (``percentunit``: a ratio as a percentage).

    ``options`` and ``custom``: the panel type's own, over the defaults below. ``overrides``: field configurations of
    single series. ``thresholds``: (from value, color), the first from minus infinity.
    """

    title: str
    kind: Kind
    about: str
    queries: Sequence[Query] = ()
    width: int = 8
    height: int = 7
    unit: str = "short"
    decimals: int | None = None
    minimum: float | None = 0
    options: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    thresholds: Sequence[tuple[float | None, str]] = ((None, "green"),)
    mappings: Sequence[Json] = ()
    transformations: Sequence[Json] = ()
    no_value: str | None = None

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel at that place of the grid."""
        found: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "options": DEFAULT_OPTIONS[self.kind] | self.options,
        }
        if self.kind != "text":
            found["datasource"] = SOURCE
            found["targets"] = [self._target(number, query) for number, query in enumerate(self.queries)]
            found["fieldConfig"] = {"defaults": self._field(), "overrides": list(self.overrides)}
        if self.transformations:
            found["transformations"] = list(self.transformations)
        return found

    def _target(self, number: int, query: Query) -> Json:
        instant = self.kind in ("stat", "table", "bargauge")
        return {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
            "format": "table" if self.kind == "table" else "time_series",
        }

    def _field(self) -> Json:
        steps = [{"value": value, "color": color} for value, color in self.thresholds]
        known: Json = {
            "unit": self.unit,
            "color": {"mode": "palette-classic" if self.kind == "timeseries" else "thresholds"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "mappings": list(self.mappings),
        }
        custom = DEFAULT_CUSTOM.get(self.kind, {}) | self.custom
        some = {
            "custom": custom or None,
            "decimals": self.decimals,
            "min": self.minimum,
            "noValue": self.no_value,
        }
        return known | {name: value for name, value in some.items() if value is not None}


DEFAULT_OPTIONS: dict[Kind, Json] = {
    "bargauge": {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
    },
    "state-timeline": {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.8,
        "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
    },
    "table": {"showHeader": True},
    "text": {"mode": "markdown"},
    "timeseries": {
        "legend": {
            "showLegend": True,
            "displayMode": "list",
            "placement": "bottom",
            "calcs": ["lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "none"},
    },
}
# A window's figures hold until the next one comes: steps, not slopes.
DEFAULT_CUSTOM: dict[Kind, Json] = {
    "timeseries": {"lineInterpolation": "stepAfter", "lineWidth": 2, "fillOpacity": 5, "showPoints": "never"}
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A headline and the panels under it."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """All of it. ``variables``, ``annotations``, ``links``: in Grafana's own form."""

    uid: str
    title: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[Json]
    annotations: Sequence[Json] = ()
    links: Sequence[Json] = ()

    def json(self) -> Json:
        """What Grafana loads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.about,
            "tags": ["gravac"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,  # one cursor over all panels
            "time": {"from": "now-30m", "to": "now"},
            "refresh": "10s",
            "timezone": "browser",
            "templating": {"list": list(self.variables)},
            "annotations": {"list": list(self.annotations)},
            "links": list(self.links),
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[Json]:
        number, y = 1, 0
        for row in self.rows:
            place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            yield {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
            number, y = number + 1, y + 1
            x = tallest = 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                yield panel.json(number, x, y)
                number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
            y += tallest
