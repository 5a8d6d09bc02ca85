"""Download what gravac needs on a GPU machine without a network: ``make gpu-wheels``.

The folder holds gravac's own wheel, what it depends on and what its tests need, for Python 3.12 on Linux x86-64. torch
and Triton are assumed to be there. pip then resolves gravac and its tests from this folder alone, for that Python, that
torch and that Triton; a missing wheel, or a requirement that this torch does not meet, is an error here and not there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "gpu-wheels"
PYTHON = "3.12"
THERE = {"torch": "2.11.0+cu130", "triton": "3.6.0"}
"""What the machine has."""
TESTS = ("pytest", "pytest-timeout", "hypothesis")
"""What its tests need beside gravac."""
MOST_BYTES = 60_000_000
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_5_x86_64",
    "manylinux1_x86_64",
)
TARGET = [
    "--only-binary=:all:",
    "--implementation=cp",
    f"--python-version={PYTHON}",
    *(f"--platform={name}" for name in PLATFORMS),
]
"""pip's options for that machine."""


def pip(*arguments: str, isolated: bool = False) -> str:
    """Run pip and return what it prints.

    Args:
        arguments: Its arguments.
        isolated: Ignore settings of this machine's user, such as further indexes and folders of wheels.

    Raises:
        SystemExit: It failed; the message is its own.
    """
    environment = {
        name: value for name, value in os.environ.items() if not (isolated and name.startswith("PIP_"))
    }
    options = ["--isolated"] if isolated else []
    command = [sys.executable, "-m", "pip", *options, "--disable-pip-version-check", *arguments]
    done = subprocess.run([*command, "--quiet"], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:  # quiet, pip does not say which requirements conflict
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        raise SystemExit(f"pip {arguments[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def requirements() -> list[str]:
    """Return what gravac's wheel depends on, without what the machine has."""
    declared: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [line for line in declared if not line.startswith(tuple(f"{name}>" for name in THERE))]


def download(folder: Path) -> None:
    """Fill an empty folder: gravac's wheel from this checkout, the others in the versions of ``constraints.txt``."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"gravac's wheel cannot be built:\n{done.stdout}{done.stderr}")
    pip(
        "download",
        *TARGET,
        f"--constraint={ROOT / 'constraints.txt'}",
        f"--dest={folder}",
        *requirements(),
        *TESTS,
    )


def check(folder: Path, there: dict[str, str] | None = None) -> list[str]:
    """Resolve gravac, its extra ``cuda`` and its tests from a folder of wheels and what the machine has.

    Args:
        folder: The wheels.
        there: Name and version of what the machine has. Default: ``THERE``.

    Returns:
        The distributions that pip would install there, as ``name==version``, without what the machine has.

    Raises:
        SystemExit: Something is missing, does not fit, or is not needed; the message says what.
    """
    there = THERE if there is None else there
    with tempfile.TemporaryDirectory() as scratch:
        for name, version in there.items():
            empty_wheel(Path(scratch), name, version)
        links = [f"--find-links={folder}", f"--find-links={scratch}"]
        wanted = ["gravac[cuda]", *TESTS]
        options = ["--dry-run", "--ignore-installed", "--no-index", f"--target={scratch}/site", "--report=-"]
        report = json.loads(pip("install", *options, *TARGET, *links, *wanted, isolated=True))
    found = {_normal(one["metadata"]["name"]): one["metadata"]["version"] for one in report["install"]}
    carried = {_normal(file.name.split("-")[0]) for file in folder.glob("*.whl")}
    if missing := there.keys() - found.keys():
        raise SystemExit(f"nothing asks for {', '.join(sorted(missing))}, which the machine has")
    if superfluous := carried - found.keys():
        raise SystemExit(f"{folder} holds what nothing needs: {', '.join(sorted(superfluous))}")
    return sorted(f"{name}=={version}" for name, version in found.items() if name not in there)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def empty_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = (), extra: str = "") -> None:
    """Write a wheel that stands for a distribution: metadata alone.

    Args:
        folder: Where to.
        name: Of the distribution.
        version: Of the distribution.
        requires: What it depends on.
        extra: Name of an extra that adds nothing.
    """
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in requires] + ([f"Provides-Extra: {extra}"] if extra else [])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: gravac\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def sizes(folder: Path) -> list[tuple[str, int]]:
    """Return name and bytes of every wheel, the largest first.

    Raises:
        SystemExit: Together they are too large to carry.
    """
    found = sorted(
        ((file.name, file.stat().st_size) for file in folder.glob("*.whl")), key=lambda one: -one[1]
    )
    total = sum(size for _, size in found)
    if total > MOST_BYTES:
        raise SystemExit(
            f"{folder} holds {total:,} bytes, {MOST_BYTES:,} at most: {found[:3]} are the largest"
        )
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tools.gpu.wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the wheels go; its wheels are replaced"
    )
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        new = Path(scratch)
        download(new)
        names, found = check(new), sizes(new)
        chosen.folder.mkdir(parents=True, exist_ok=True)
        for old in chosen.folder.glob("*.whl"):
            old.unlink()
        for file in new.glob("*.whl"):
            shutil.move(file, chosen.folder)
    for name, size in found:
        print(f"{size:>12,}  {name}")
    machine = ", ".join(f"{name} {version}" for name, version in THERE.items())
    print(f"{sum(size for _, size in found):>12,}  bytes in {chosen.folder}")
    print(f"Complete: {len(names)} distributions for Python {PYTHON} with {machine} and no network.")


if __name__ == "__main__":
    main(sys.argv[1:])
