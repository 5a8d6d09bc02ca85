"""Both images, built by buildah on a base that debootstrap makes, from an index of our own with our own certificate.

They take some minutes and a network, so they run only where buildah and debootstrap are installed.
"""

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.monitoring.shipped import DOCKER, ROOT

TOOLS = ("buildah", "debootstrap", "openssl", "unshare", "nsenter")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
BASE = "localhost/gravac-tests-base:1.0.0"
BUILD_REQUIREMENTS = ("hatchling>=1.27", "torch", "numba>=0.61")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
USER = 10001
TOKEN = "a-token-of-the-tests"

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)} (Debian: buildah, debootstrap)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root"),
]


def call(*words: object, **options: object) -> str:
    """Run a command; its output. A failure shows the end of what it said."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


class Buildah:
    """buildah with storage of its own. Of its isolations only chroot needs no container runtime."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = ["buildah", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self.environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *words: object) -> str:
        return call(*self.command, *words, env=self.environment).strip()


class Index(BaseHTTPRequestHandler):
    """A package index: a page for each project, with links to its wheels."""

    wheels: Path

    def do_GET(self) -> None:
        project = unquote(self.path).strip("/").split("/")[-1]
        wheel = self.wheels / project
        if wheel.is_file():
            body = wheel.read_bytes()
        else:
            names = [
                path.name
                for path in self.wheels.iterdir()
                if path.name.split("-")[0].lower().replace("_", "-").replace(".", "-") == project
            ]
            body = "".join(f'<a href="/files/{name}">{name}</a>' for name in names).encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "application/octet-stream" if wheel.is_file() else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Address and certificate of an index that has what the images install."""
    folder = tmp_path_factory.mktemp("index")
    wheels = folder / "wheels"
    requirements = ["--requirement", DOCKER / "controller-requirements.txt", *BUILD_REQUIREMENTS]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--retries",
        "0",
        "--extra-index-url",
        CPU_TORCH,
    ]
    call(*pip, "--dest", wheels, "--constraint", ROOT / "constraints.txt", *requirements)
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    pair = ["-keyout", folder / "key.pem", "-out", folder / "ca.pem"]
    call("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *pair)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    handler = type("OurIndex", (Index,), {"wheels": wheels})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/simple", (folder / "ca.pem").read_text()
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """buildah with a base image that has what Debian's Python image has."""
    folder = tmp_path_factory.mktemp("buildah")
    root = folder / "root"
    found = Buildah(folder)
    try:
        call("debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", root)
        (root / "usr/bin/python").symlink_to("python3")
        container = found("from", "scratch")
        found("add", "--quiet", container, root, "/")
        shutil.rmtree(root)
        found("commit", "--quiet", "--rm", container, BASE)
        yield found
        found("rm", "--all")
        found("rmi", "--all", "--force")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(buildah: Buildah, name: str, index: tuple[str, str]) -> str:
    """Build an image as docs/monitoring.md says and return a container of it."""
    url, certificate = index
    given = {"BASE": BASE, "PIP_INDEX_URL": url, "CA_CERTIFICATE": certificate}
    given |= {"TORCH_INDEX_URL": url} if name == "trainer" else {}
    arguments = [word for each in given.items() for word in ("--build-arg", "=".join(each))]
    image = f"gravac-{name}:tests"
    file = DOCKER / f"{name}.Dockerfile"
    buildah("bud", "--quiet", "--format", "docker", *arguments, "--file", file, "--tag", image, ROOT)
    described = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    assert described["User"] == f"{USER}:{USER}"
    assert certificate.splitlines()[1] not in json.dumps(described), (
        "the final image knows nothing of the index"
    )
    return buildah("from", image)


def test_the_controllers_image_serves_as_its_user_and_tells_its_health(
    buildah: Buildah, index: tuple[str, str]
) -> None:
    container = build(buildah, "controller", index)
    described = json.loads(buildah("inspect", "--type", "container", container))["Docker"]["config"]
    kind, *check = described["Healthcheck"]["Test"]
    assert kind == "CMD"
    # A network of its own: the image's health check asks its own port.
    serve = [*described["Entrypoint"], "--host", "0.0.0.0"]
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    server = subprocess.Popen(
        [*alone, *buildah.command, "run", "--env", f"GRAVAC_TOKEN={TOKEN}", container, "--", *serve],
        env=buildah.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    beside = ["nsenter", f"--net=/proc/{server.pid}/ns/net", *buildah.command, "run", container, "--"]
    try:
        until = time.monotonic() + 120
        healthy = 1
        while healthy and server.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
            done = subprocess.run(
                [*beside, *check], env=buildah.environment, capture_output=True, check=False
            )
            healthy = done.returncode
        assert healthy == 0
        (lock,) = buildah.folder.rglob(".controller.lock")  # in the image's volume, wherever buildah keeps it
        assert lock.stat().st_uid == USER
    finally:
        server.terminate()
        output, _ = server.communicate(timeout=60)
    assert "Traceback" not in output


def test_the_trainers_image_trains(buildah: Buildah, index: tuple[str, str]) -> None:
    container = build(buildah, "trainer", index)
    described = json.loads(buildah("inspect", "--type", "container", container))["Docker"]["config"]
    words = [*described["Cmd"][:-1], "20"]
    variables = (
        "--env",
        f"GRAVAC_TOKEN={TOKEN}",
        "--env",
        "GRAVAC_CONTROLLER=none",
        "--env",
        "GRAVAC_WINDOW=5",
    )
    here = ["sh", "-c", 'id -u; "$@" 2>&1; cat gravac-runs/*/journal.jsonl | grep -c window', "sh", *words]
    said = buildah("run", *variables, container, "--", *here)
    assert said.split()[0] == str(USER)
    assert int(said.split()[-1]) >= 3, said
