"""The wheels for a GPU machine: whether they fit is found out here, not on that machine."""

from importlib import metadata
from pathlib import Path

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


def test_what_the_machine_has_is_not_carried() -> None:
    names = {Requirement(line).name for line in wheels.requirements()}
    assert "pydantic" in names
    assert not names & wheels.THERE.keys()
