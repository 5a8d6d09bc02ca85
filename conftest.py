"""For all tests: the same surroundings everywhere, the same examples every time, two tiers, and two phases of each."""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

LONG = ("long", "distributed", "browser")
"""Marks of tests that begin first, so that no worker is left with one at the end."""
REST = (*LONG, "alone")
"""Marks of tests that are not in the fast tier, unless they are marked ``smoke``."""
PROCESSES = ("start", "controller", "shared", "run_ranks", "run_each", "warm")
"""Fixtures that start processes; tests that use one are not in the fast tier either."""
FOLDERS = ("browser", "chaos", "frameworks", "gpu", "monitoring", "ranks", "bench")
"""Folders of tests that start processes."""
EXAMPLES = 5
"""Most examples of a property in the fast tier."""
SUITES = ("compressors/test_base.py", "test_sync_free.py")
"""Property suites over all codecs. The fast tier runs them with the default settings of each codec."""
SLOW_SECONDS = 10.0
"""Computing time of a test above which the fast tier names it and fails. A busy machine takes two to four times as
long for the same test: what takes 1.8 s alone took 6.9 s once.

Computing time, not that of a clock: that of a busy machine says nothing about the test.
"""
STARTS = ("os.fork", "os.forkpty", "os.posix_spawn")
"""Python's audit events of a new process, beside that of ``subprocess``."""
LIGHT = ("fc-list", "git", "uname")
"""Programs that take milliseconds: an agent asks for its commit, ``platform`` for the processor, and Matplotlib, the
first time on a machine, for the fonts."""
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
    parser.addoption(
        "--tier",
        choices=("fast", "rest", "all"),
        help="fast: what runs in one process, and smoke tests of the rest (`make test`); rest: what that leaves out",
    )
    parser.addoption("--skips", type=Path, help="file to which a line is added for each skipped test: why")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Take the computing time of each test."""
    began = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("computing", round(time.process_time() - began, 3)))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Add why each test was skipped to the file that `make test` asks for: it sums up all runs. Name slow tests."""
    path = config.getoption("--skips")
    if path is not None and not hasattr(config, "workerinput"):
        reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
        with path.open("a") as file:
            file.writelines(f"{' '.join(reason.split())}\n" for reason in reasons)
    if slow := config.stash.get(SLOW, None):
        terminalreporter.section("slow", red=True, bold=True)
        for test, computing in sorted(slow.items(), key=lambda entry: -entry[1]):
            terminalreporter.line(f"{computing:6.1f} s of computing: {test}")
        terminalreporter.line(
            f"The fast tier has tests of less than {SLOW_SECONDS:g} s. Make them faster, or mark them `long`."
        )


SLOW = pytest.StashKey[dict[str, float]]()


class OneProcess:
    """Fails a test of the fast tier that starts a process unless it is marked ``smoke``."""

    def __init__(self) -> None:
        self._started: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            if arguments[0] not in LIGHT:
                self._started.append(str(arguments[1]))
        elif event in STARTS:
            self._started.append(event)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        return (yield from self._watch(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        return (yield from self._watch(item))

    def _watch(self, item: pytest.Item) -> Generator[None]:
        self._started.clear()
        result = yield
        if self._started and not item.get_closest_marker("smoke"):
            pytest.fail(f"starts a process, so mark it `distributed` or `smoke`: {self._started[0]}", False)
        return result


class Durations:
    """Writes how long each test of a tier took to ``build/durations.json``: by the clock, whole, and of computing."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._slow = config.stash.setdefault(SLOW, {})
        self._of: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        entry = self._of.setdefault(report.nodeid, {"seconds": 0.0, "computing": 0.0})
        entry["seconds"] = round(entry["seconds"] + report.duration, 3)
        if report.when == "call":
            entry["computing"] = dict(report.user_properties).get("computing", 0.0)  # type: ignore[assignment]
            # Of one that starts processes, the computing is elsewhere, and what it waits for is not its fault.
            if self._config.getoption("--tier") == "fast" and entry["computing"] > SLOW_SECONDS:
                self._slow[report.nodeid] = entry["computing"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        path = self._config.rootpath / "build" / "durations.json"
        path.parent.mkdir(exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | self._of, indent=0, sort_keys=True))
        if self._slow and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


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
    # In the background of a script both are ignored, and children inherit that.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if config.getoption("--tier") == "fast":
        config.pluginmanager.register(OneProcess())
    if config.getoption("--tier") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What has no test of this phase or tier is not imported: that alone would take a quarter of a minute."""
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    if config.getoption("--phase") == "alone" and "alone" not in text:
        return True
    if config.getoption("--tier") == "fast" and "smoke" not in text and in_folder(collection_path, config):
        return True
    return None


def in_folder(path: Path, config: pytest.Config) -> bool:
    """Whether the tests of this folder start processes."""
    return not set(FOLDERS).isdisjoint(path.relative_to(config.rootpath).parts)


def is_fast(item: pytest.Item) -> bool:
    """Whether a test is in the fast tier: it is marked ``smoke``, or it starts no process and does not take long."""
    if item.get_closest_marker("smoke"):
        return True
    return not (
        in_folder(item.path, item.config)
        or any(item.get_closest_marker(mark) for mark in REST)
        or set(PROCESSES) & set(getattr(item, "fixturenames", ()))
        or (any(map(item.path.match, SUITES)) and has_settings(item))
    )


def has_settings(item: pytest.Item) -> bool:
    """Whether it is about a member with settings, as ``qsgd:bits=2``."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return any(isinstance(value, str) and ":" in value for value in parameters.values())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first; keep the tests of the phase and of the tier asked for."""
    items.sort(key=lambda item: not any(item.get_closest_marker(mark) for mark in LONG))
    phase, tier = config.getoption("--phase"), config.getoption("--tier")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        of_phase = phase is None or (item.get_closest_marker("alone") is not None) == (phase == "alone")
        of_tier = tier in (None, "all") or is_fast(item) == (tier == "fast")
        (kept if of_phase and of_tier else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    if tier == "fast":
        for item in items:
            few_examples(item)


def few_examples(item: pytest.Item) -> None:
    """Also of a property that says how many examples it wants, which a profile would not change."""
    function = getattr(item, "obj", None)
    if is_hypothesis_test(function):
        wanted = function._hypothesis_internal_use_settings
        function._hypothesis_internal_use_settings = settings(
            wanted, max_examples=min(wanted.max_examples, EXAMPLES)
        )


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it for garbage again and again took a twentieth of the time."""
    gc.collect()
    gc.freeze()
