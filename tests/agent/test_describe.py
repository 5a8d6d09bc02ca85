"""The description of a job in its trace: the commit of its script, its settings, and no secret."""

import subprocess
import sys
from pathlib import Path

import pytest

from gravac_agent.settings import AgentSettings, load
from gravac_agent.setup import describe


def test_the_commit_is_that_of_the_script_not_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "project" / "deep" / "train.py"
    script.parent.mkdir(parents=True)
    script.touch()
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path / "project"), *words], check=True)
    head = subprocess.run(
        ["git", "-C", str(tmp_path / "project"), "rev-parse", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    )
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert describe.revision() == head.stdout.strip()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    assert describe.revision() is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe.revision() is None


def test_a_git_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(describe, "GIT_SECONDS", 0.2)
    assert describe.revision() is None


def test_all_settings_are_recorded_except_secrets_and_places() -> None:
    recorded = load(token="secret-0123456789", job="a", seed=7, rank_rows=16).described()
    assert (recorded["seed"], recorded["rank_rows"], recorded["nonfinite"]) == (7, 16, "skip")
    assert "secret" not in str(recorded)
    own_fields = {"enabled", "compressor", "memory", "policy", "window", "job", "link"}
    assert set(AgentSettings.model_fields) - set(recorded) == own_fields | {
        "token",
        "data_dir",
        "controller",
        "page_port",
        "steering",
        "log_to_stderr",
    }
