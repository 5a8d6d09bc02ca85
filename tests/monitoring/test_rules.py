"""The files for Prometheus: promtool takes them, every rule is tested, nothing asks for what is not there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.monitoring.shipped import PROMETHEUS, ROOT, known_names, names, rules

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_takes_the_configuration_and_its_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "recording.yml", "alerts.yml")


@needs_promtool
@pytest.mark.parametrize("example", sorted((PROMETHEUS / "examples").iterdir()), ids=lambda path: path.name)
def test_promtool_takes_the_examples(example: Path) -> None:
    secret = "credentials_file" in example.read_text()  # which is not on this machine
    promtool("check", "config", *(["--syntax-only"] if secret else []), str(example))


@needs_promtool
def test_rules_do_what_they_say() -> None:
    promtool("test", "rules", "tests.yml")


def test_every_rule_is_tested() -> None:
    text = (PROMETHEUS / "tests.yml").read_text()
    assert [name for name in rules() if name not in text] == []
    assert len(rules()) > 20


def test_rules_ask_for_what_is_there() -> None:
    unknown = {name: names(rule["expr"]) - known_names() for name, rule in rules().items()}
    assert not {name: missing for name, missing in unknown.items() if missing}
    assert all(names(rule["expr"]) for rule in rules().values())


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for name, rule in rules().items():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
            assert set(rule["annotations"]) == {"summary", "description"}, name
            assert "$labels." in rule["annotations"]["summary"], f"{name}: which job or controller?"


def test_the_page_lists_every_alert() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    listed = dict(re.findall(r"^\| (Gravac\w+) \| (\w+) \|", page, re.MULTILINE))
    assert listed == {name: rule["labels"]["severity"] for name, rule in rules().items() if "alert" in rule}


def test_the_examples_scrape_what_alerts_look_for_and_name_the_rules_that_panels_read() -> None:
    for file in (PROMETHEUS / "prometheus.yml", *(PROMETHEUS / "examples").iterdir()):
        configuration = yaml.safe_load(file.read_text())
        found = {(file.parent / path).resolve() for path in configuration.get("rule_files", ())}
        assert found == {PROMETHEUS / "recording.yml", PROMETHEUS / "alerts.yml"}, file.name
        (scrape,) = configuration["scrape_configs"]
        assert scrape["job_name"] == "gravac", file.name
        assert ("http_sd_configs" in scrape) == scrape.get("honor_labels", False), file.name
