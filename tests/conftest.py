"""For all tests: the same surroundings everywhere, the same examples every time, and two phases to run them in."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

ALONE = ("alone", "browser", "distributed")
"""Marks of tests that want the machine for themselves; all others may run beside each other."""
OURS = "GRAVAC_"
CHOSEN = ("GRAVAC_KERNELS",)
"""Whoever sets it wants the tests to see it."""
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
        help="only tests that may run beside others, or only those that may not (`make test` runs both)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Nothing of the caller's reaches a test: width and colour of a terminal, proxies, our settings, no Ctrl-C."""
    for name in list(os.environ):
        ours = name.startswith(OURS) and name not in CHOSEN
        if ours or name in OUTPUT or name.lower() in PROXIES:
            del os.environ[name]
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in the background of a script; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the phase asked for."""
    phase = config.getoption("--phase")
    if phase is None:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        alone = any(item.get_closest_marker(mark) for mark in ALONE)
        (kept if alone == (phase == "alone") else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
