"""For all tests: the same surroundings everywhere, the same examples every time, and two phases to run them in."""

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LONG = ("long", "distributed", "browser")
"""Marks of tests that begin first, so that no worker is left with one at the end."""
OURS = "GRAVAC_"
CHOSEN = ("GRAVAC_KERNELS",)
"""Settings that reach the tests when the caller sets them."""
OUTPUT = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

# One run tests what the next one does: a failure is of the change at hand. `--hypothesis-profile=search` looks
# for new examples. No deadline and no health check by time: a busy machine is not a bug.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--phase",
        choices=("together", "alone"),
        help="only tests that may run beside others, or only those that measure time (`make test` runs both)",
    )
    parser.addoption("--skips", type=Path, help="file to which a line is added for each skipped test: why")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Add why each test was skipped to the file that `make test` asks for: it sums up both runs."""
    config = terminalreporter.config
    path = config.getoption("--skips")
    if path is not None and not hasattr(config, "workerinput"):
        reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
        with path.open("a") as file:
            file.writelines(f"{' '.join(reason.split())}\n" for reason in reasons)


def pytest_configure(config: pytest.Config) -> None:
    """Nothing of the caller's reaches a test: width and colour of a terminal, proxies, our settings, no Ctrl-C."""
    for name in list(os.environ):
        ours = name.startswith(OURS) and name not in CHOSEN
        if ours or name in OUTPUT or name.lower() in PROXIES:
            del os.environ[name]
    if hasattr(
        config, "workerinput"
    ):  # for the names of tests only: what they start orders its sets as it likes
        os.environ.pop("PYTHONHASHSEED", None)
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in the background of a script; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The second phase does not import what has none of its tests: that alone would take it a quarter of a minute."""
    if config.getoption("--phase") != "alone" or collection_path.suffix != ".py":
        return None
    return True if "alone" not in collection_path.read_text() else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first; keep the tests of the phase asked for."""
    items.sort(key=lambda item: not any(item.get_closest_marker(mark) for mark in LONG))
    phase = config.getoption("--phase")
    if phase is None:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        alone = item.get_closest_marker("alone") is not None
        (kept if alone == (phase == "alone") else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it for garbage again and again took a twentieth of the time."""
    gc.collect()
    gc.freeze()
