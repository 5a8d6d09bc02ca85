"""Surroundings like those of the controller's container, made with namespaces: run by ``test_image`` in ``unshare``.

Takes JSON: the commands of the image and of the composition. Its file system is read-only but for /run, where the
volumes are; commands run as the image's user, without capabilities, with no variables but the image's; the network is
its own.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PRIVILEGES = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
DATA, SECRET = Path("/run/data"), Path("/run/gravac/token")
Answer = tuple[int, str]


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def prepare(user: int) -> None:
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "run", "/run")
    for folder in (DATA, SECRET.parent):
        folder.mkdir()
        os.chown(folder, user, user)
    mount("-o", "remount,bind,ro", "/")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def ask(method: str, path: str, host: str, token: str | None = None, body: str | None = None) -> Answer:
    """One request to the controller's port, under that name."""
    connection = http.client.HTTPConnection("127.0.0.1", 8756, timeout=20)
    headers = {"Host": host, "Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def main(request: dict[str, Any]) -> dict[str, Any]:
    user, registration = request["user"], request["registration"]
    prepare(user)
    environment = {
        "PATH": os.environ["PATH"],
        **request["environment"],
        "GRAVAC_CONTROLLER_DATA_DIR": str(DATA),
    }
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", *PRIVILEGES]

    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*as_user, *command], env=environment, capture_output=True, cwd=DATA, check=False
        )

    makes = [run(request["make_token"]).returncode for _ in range(2)]
    token = SECRET.read_text()
    unhealthy = run(request["health"]).returncode
    server = subprocess.Popen(
        [*as_user, *request["serve"]],
        env=environment,
        cwd=DATA,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        until = time.monotonic() + 60
        while (
            (healthy := run(request["health"]).returncode)
            and server.poll() is None
            and time.monotonic() < until
        ):
            time.sleep(0.1)
        answers = {
            "look": ask("GET", "/v1/jobs", "127.0.0.1:8756"),
            "scrape": ask("GET", "/v1/sd/prometheus", "controller:8756"),
            "report": ask("POST", "/v1/jobs", "controller:8756", token, registration),
            "report without token": ask("POST", "/v1/jobs", "controller:8756", None, registration),
            "foreign": ask("GET", "/v1/jobs", "elsewhere:8756"),
        }
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=30)
    finally:
        server.kill()
    return {
        "made_token": makes,
        "token_mode": oct(SECRET.stat().st_mode & 0o777),
        "writes_elsewhere": run(["touch", "/tmp/gravac-was-here"]).returncode,
        "before_and_while_it_runs": [unhealthy, healthy],
        "answers": answers,
        "ended": server.returncode,
        "ending_seconds": time.monotonic() - began,
        "output": output.decode(),
        "journals": [str(path.relative_to(DATA)) for path in DATA.glob("*/journal.jsonl")],
    }


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
