"""The folder of wheels for a GPU machine: whether it is complete is found out here, not on that machine."""

import os
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.gpu import wheels

ROOT = Path(__file__).parent.parent
MACHINE = {
    "python_version": wheels.PYTHON,
    "python_full_version": f"{wheels.PYTHON}.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "extra": "cuda",
}


def needed() -> dict[str, list[Requirement]]:
    """All that gravac and its tests need there, by the metadata of what is installed here: who asks for what."""
    found: dict[str, list[Requirement]] = {}
    waiting = ["gravac", *wheels.TESTS]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name in wheels.THERE:
            continue
        seen.add(name)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            extra = "cuda" if name == "gravac" else ""
            if requirement.marker is None or requirement.marker.evaluate({**MACHINE, "extra": extra}):
                found.setdefault(requirement.name, []).append(requirement)
                waiting.append(requirement.name)
    return found


def test_the_machines_torch_and_triton_are_new_enough() -> None:
    found = needed()
    assert {"torch", "triton", "pydantic", "uvloop", "starlette", "pydantic-core"} <= found.keys()
    for name, version in wheels.THERE.items():
        for requirement in found[name]:
            assert requirement.specifier.contains(version, prereleases=True), requirement


def test_all_of_it_has_an_exact_version() -> None:
    """Else pip would choose one there that nobody has tested here."""
    lines = (ROOT / "constraints.txt").read_text().replace("_", "-").lower().splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    assert {name.replace("_", "-").lower() for name in needed()} - wheels.THERE.keys() <= pinned


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete folder of wheels that hold metadata alone."""
    wheels.empty_wheel(
        tmp_path, "gravac", "1", ["torch>=2.6", "pydantic>=2", "triton>=3; extra == 'cuda'"], extra="cuda"
    )
    wheels.empty_wheel(tmp_path, "pydantic", "2.1", ["typing-extensions"])
    for name in ("typing_extensions", "pytest", "pytest_timeout", "hypothesis"):
        wheels.empty_wheel(tmp_path, name, "1")
    return tmp_path


def test_a_complete_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels elsewhere, which only this machine has, count for nothing."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    found = wheels.check(folder)
    assert found == sorted(
        [
            "gravac==1",
            "pydantic==2.1",
            "typing-extensions==1",
            "pytest==1",
            "pytest-timeout==1",
            "hypothesis==1",
        ]
    )
    (folder / "typing_extensions-1-py3-none-any.whl").rename(folder / "elsewhere")
    with pytest.raises(SystemExit, match="typing-extensions"):
        wheels.check(folder)


def test_a_requirement_that_the_machines_torch_does_not_meet(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"torch>=2\.6"):
        wheels.check(folder, {"torch": "2.5.1", "triton": "3.6.0"})


def test_a_wheel_too_many(folder: Path) -> None:
    wheels.empty_wheel(folder, "six", "1")
    with pytest.raises(SystemExit, match="holds what nothing needs: six"):
        wheels.check(folder)


def test_too_much_to_carry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(wheels.sizes(folder)) == 6
    monkeypatch.setattr(wheels, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit, match="1,000 at most"):
        wheels.sizes(folder)


@pytest.mark.skipif("TEST_WITH_NETWORK" not in os.environ, reason="downloads 12 MB: set TEST_WITH_NETWORK=1")
def test_the_real_folder_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheels.main(["--folder", str(tmp_path)])
    assert "Complete: " in capsys.readouterr().out
    assert any(file.name.startswith("gravac-") for file in tmp_path.glob("*.whl"))
