"""Controllers to test against: a real process, or the application in this one."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.in_process import InProcess
from tools.harness.controller import Controller


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Start controllers on ``tmp_path/runs``; all are stopped at the end."""
    started: list[Controller] = []

    def start_one(*arguments: str, data_dir: Path | None = None, **options: object) -> Controller:
        controller = Controller(data_dir or tmp_path / "runs", *arguments, **options)  # type: ignore[arg-type]
        started.append(controller)
        return controller

    yield start_one
    for controller in started:
        controller.stop()


@pytest.fixture
def controller(start: Callable[..., Controller]) -> Controller:
    """One controller process."""
    return start()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore settings in the environment of the tests."""
    for name in list(os.environ):
        if name.startswith("GRAVAC_"):
            monkeypatch.delenv(name)


@pytest.fixture
def open_app(tmp_path: Path) -> Iterator[Callable[..., InProcess]]:
    """Open applications on ``tmp_path/runs``; open one again after closing it to see a restart."""
    opened: list[InProcess] = []

    def open_one(**settings: object) -> InProcess:
        app = InProcess(tmp_path / "runs", **settings)
        opened.append(app)
        return app

    yield open_one
    for app in opened:
        app.close()


@pytest.fixture
def app(open_app: Callable[..., InProcess]) -> InProcess:
    """One application with default settings."""
    return open_app()
