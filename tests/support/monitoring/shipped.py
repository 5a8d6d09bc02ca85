"""The files for Docker, Prometheus and Grafana as the tests need them: services, rules, queries, allowed names."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gravac_controller.metrics.service import DURATION, SERVICE
from gravac_controller.metrics.table import TABLE

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROMETHEUS = ROOT / "dashboards/prometheus"
DASHBOARD = ROOT / "dashboards/grafana/gravac.json"
OF_PROMETHEUS = {
    "up",
    "ALERTS",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
"""Names that Prometheus itself creates, or that every client exposes."""


@dataclass(frozen=True)
class Ask:
    """A query of the dashboard, and the panel that asks it. ``may_be_empty``: no data is an answer too."""

    panel: str
    expr: str
    may_be_empty: bool = False


@cache
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def asks() -> list[Ask]:
    """Every query of the dashboard."""
    board = dashboard()
    of_panels = [
        Ask(f"{panel['title']} ({panel['id']})", target["expr"])
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]
    marks = [Ask(f"annotation {one['name']}", one["expr"], True) for one in board["annotations"]["list"]]
    return of_panels + marks


@cache
def rules() -> dict[str, dict[str, Any]]:
    """Every recording rule and alert, by name."""
    found = {}
    for file in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"]:
            for rule in group["rules"]:
                found[rule.get("record") or rule["alert"]] = rule
    return found


def selectors(expr: str) -> list[str]:
    """The series that an expression reads: names with their matchers, without ranges."""
    name = r"(?:(?:job_name:|instance:)?gravac_[\w:]*|process_\w+|up|ALERTS)"
    return re.findall(rf'\b{name}\b(?:\{{(?:[^}}"]|"[^"]*")*\}})?', expr)


def names(expr: str) -> set[str]:
    """The metrics that an expression reads."""
    return {selector.partition("{")[0] for selector in selectors(expr)}


def known_names() -> set[str]:
    """Every name that can be in a Prometheus with our configuration."""
    found = set(OF_PROMETHEUS) | {name for name, rule in rules().items() if "record" in rule}
    for row in (*TABLE, *SERVICE):
        found.add(f"{row.name}_total" if row.type == "counter" else row.name)
    return found | {f"{DURATION.name}_{part}" for part in ("bucket", "count", "sum")}
