"""The page of a finished demo, until the person has seen enough."""

import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

START_SECONDS = 15.0
POLL_SECONDS = 0.1


def keep_until_enter(url: str, data_dir: Path) -> None:
    """Serve the page at the address it had during the training, until Enter or Ctrl-C. Opened tabs go on by themselves.

    Returns at once where no controller can be started there.
    """
    port = str(urlsplit(url).port)
    command = [
        sys.executable,
        "-m",
        "gravac_controller",
        "serve",
        "--data-dir",
        str(data_dir),
        "--port",
        port,
    ]
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches only this process
    )
    try:
        if _answers(url, server):
            input(f"\nThe page stays at {url} until you press Enter.")
    except (EOFError, KeyboardInterrupt):
        pass
    finally:
        server.terminate()
        server.wait()


def _answers(url: str, server: "subprocess.Popen[bytes]") -> bool:
    """Wait until the server is up. False where it ended instead, or does not answer."""
    until = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=1):
                return True
        except OSError:
            time.sleep(POLL_SECONDS)
    return False
