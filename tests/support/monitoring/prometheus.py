"""A real Prometheus with the configuration we ship, faster and elsewhere, and questions to it."""

import http.client
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import yaml

from tests.support.monitoring.shipped import PROMETHEUS

PATIENCE_SECONDS = 60.0


def configuration(folder: Path, controller_url: str, interval: str = "1s") -> Path:
    """The shipped files in ``folder``; only the controller's address and the intervals differ."""
    for name in ("recording.yml", "alerts.yml"):
        shutil.copy(PROMETHEUS / name, folder / name)
    shipped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    shipped["global"] = dict.fromkeys(shipped["global"], interval)
    (scrape,) = shipped["scrape_configs"]
    (discovery,) = scrape["http_sd_configs"]
    discovery["url"] = discovery["url"].replace("http://controller:8756", controller_url)
    discovery["refresh_interval"] = interval
    assert discovery["url"].startswith(controller_url)
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(shipped))
    return path


class Prometheus:
    """``with Prometheus(folder, controller_url) as prometheus: prometheus.query("up")``."""

    def __init__(self, folder: Path, controller_url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._port = int(listener.getsockname()[1])
        self.log = folder / "prometheus.log"
        command = ["prometheus", f"--config.file={configuration(folder, controller_url)}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._ready():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """What an instant query returns now. Raises AssertionError with Prometheus' reason when it is refused."""
        found: list[dict[str, Any]] = self.ask(f"query?{urlencode({'query': expr})}")["result"]
        return found

    def ask(self, path: str) -> Any:
        """``data`` of /api/v1/``path``."""
        status, body = self._get(f"/api/v1/{path}")
        answer = json.loads(body)
        assert status == 200, f"{path}: {answer}"
        return answer["data"]

    def _ready(self) -> bool:
        try:
            return self._get("/-/ready")[0] == 200
        except OSError:
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
