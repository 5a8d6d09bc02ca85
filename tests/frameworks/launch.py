"""Starts real ranks with a framework: torchrun and a script of ``runs/``, or an example as its page documents it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RUNS = Path(__file__).parent / "runs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
}  # a busy machine starts it slowly


def launch(command: list[str], folder: Path, seconds: float = 570, **environment: str) -> str:
    """Run a command in a folder and return what it prints. Raises AssertionError with that when it fails."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **environment}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout if isinstance(error.stdout, str) else (error.stdout or b"").decode()
        raise AssertionError(f"{command} runs longer than {seconds} s\n{printed[-6000:]}") from None
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
    return done.stdout


def cases(script: str, folder: Path, command: list[str] = TORCHRUN) -> list[dict[str, Any]]:
    """Run a script of ``runs/`` on two ranks. Returns what each rank found, by case."""
    launch([*command, str(RUNS / script), str(folder)], folder, **RAY)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


class Page:
    """A page of docs/frameworks/: its diff, its commands and what it says of the lines added."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / f"docs/frameworks/{name}.md").read_text()
        (diff,) = self._blocks("diff")
        lines = diff.splitlines()
        self.before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        self.after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        self.added = [line[1:].strip() for line in lines if line[:1] == "+"]
        self.removed = [line[1:].strip() for line in lines if line[:1] == "-"]

    def _blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    @property
    def commands(self) -> list[str]:
        return [line for block in self._blocks("sh") for line in block.splitlines() if line.strip()]

    def run(self, folder: Path, **environment: str) -> str:
        """Run the page's last command, which starts the training, in an empty folder."""
        words = shlex.split(self.commands[-1])
        script = next(word for word in words if word.endswith(".py"))
        python = [*TORCHRUN[:3], *words[1:-1]] if words[0] == "torchrun" else [sys.executable, *words[1:-1]]
        return launch([*python, str(ROOT / script)], folder, **environment)
