"""A plugin of pytest that writes each test's outcome to a file at once: a run that is killed loses no name.

It also prints what tests record as the property ``figure``.

    python -m pytest -p tools.gpu.outcomes --outcomes FILE …
"""

import json
from pathlib import Path

import pytest

_file: Path | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="append each test's outcome to this file")


def pytest_configure(config: pytest.Config) -> None:
    global _file
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the process that started them
        _file = config.getoption("--outcomes")


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(nodeid, "begun", "")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(report.longrepr if crash is None else crash.message)
        _write(report.nodeid, "failed", why)
    elif report.when == "call" or report.skipped:
        _write(report.nodeid, report.outcome, "")
    if _file is not None and report.when == "teardown":  # pytest-xdist swallows what its workers print
        for name, value in report.user_properties:
            if name == "figure":
                print(f"\n{value}", flush=True)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report.nodeid, "failed", str(report.longrepr))


def outcomes(file: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the numbers of tests by outcome, and why tests failed or did not end, by their names."""
    found: dict[str, tuple[str, str]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        name, outcome, why = json.loads(line)
        if found.get(name, ("", ""))[0] != "failed":  # it may fail once more when it is torn down
            found[name] = outcome, why
    numbers = {"passed": 0, "failed": 0, "skipped": 0, "begun": 0}
    for outcome, _ in found.values():
        numbers[outcome] += 1
    numbers["unfinished"] = numbers.pop("begun")
    failures = {name: why for name, (outcome, why) in found.items() if outcome == "failed"}
    return numbers, failures | {
        name: "did not end" for name, (outcome, _) in found.items() if outcome == "begun"
    }


def _write(name: str, outcome: str, why: str) -> None:
    if _file is not None:
        with _file.open("a") as stream:
            lines = [line[:200] for line in why.splitlines() if line.strip()] or [""]
            stream.write(json.dumps([name, outcome, " … ".join(dict.fromkeys([lines[0], lines[-1]]))]) + "\n")
