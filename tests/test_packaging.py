"""The wheel holds the four packages, whole, and nothing else; its pytest plugin works in somebody else's project."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.support.lab import HAS_LAB
from tests.support.traces_made import make_of_world
from tools.harness.plan_world import World

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (made,) = folder.glob("*.whl")
    return made


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.smoke
def test_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"gravac", "gravac_agent", "gravac_controller", "gravac_observe"} | (
        {"gravac_lab"} if HAS_LAB else set()
    )
    for package in tops:
        assert f"{package}/py.typed" in names
        assert f"{package}/__init__.py" in names
    static = ROOT / "controller/gravac_controller/page/static"
    for file in static.rglob("*"):
        if file.is_file():
            assert f"gravac_controller/page/static/{file.relative_to(static)}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.smoke
def test_two_builds_are_the_same_file(wheel: Path, tmp_path: Path) -> None:
    """So that anybody can check that a published wheel is made of its source."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_long_description_leads_nowhere_that_its_reader_does_not_have(wheel: Path) -> None:
    """An index of packages shows README.md without the repository: a link to a page of it would be broken there."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    described = message_from_bytes(archive.read(name)).get_payload(decode=True)
    assert isinstance(described, bytes)
    shown = described.decode()
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    written = (ROOT / "README.md").read_text()
    assert [line for line in shown.splitlines() if line.startswith("#")] == [
        line for line in written.splitlines() if line.startswith("#")
    ]
    assert "claims (`docs/claims.md`)" in shown
    code = re.compile(r"^```.*?^```$", re.M | re.S)
    assert code.findall(shown) == code.findall(written)


@pytest.mark.distributed
@pytest.mark.parametrize("image", ["controller", "trainer"])
def test_what_an_image_is_made_of_can_be_installed(image: str, tmp_path: Path) -> None:
    """``docker build`` sees only what the recipe copies and ``.dockerignore`` lets through."""
    ignored = (ROOT / ".dockerignore").read_text()
    recipe = (ROOT / f"docker/{image}.Dockerfile").read_text().partition("\nFROM ${BASE}\n")[0]
    source = tmp_path / "source"
    source.mkdir()
    for line in re.findall(r"^COPY (.*)$", recipe, re.M):
        *names, target = line.split()
        for name in names:
            allowed = {f"!{name}", *(f"!{parent}" for parent in Path(name).parents)}
            assert allowed & set(ignored.splitlines()), name
            place = source / target / Path(name).name if target.endswith("/") else source / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source))
    assert list(tmp_path.glob("gravac-*.whl"))


def environment(home: Path, *wheels: Path) -> Path:
    """A new environment with these wheels, and all else that they need from here. Returns its folder of programs."""
    venv.create(home, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    run(*pip, "install", "--no-deps", "--no-index", *map(str, wheels))
    (packages,) = home.glob("lib/python*/site-packages")
    # A plain path, so that the .pth files there, and with them this checkout, count for nothing.
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.fixture
def foreign(wheel: Path, tmp_path: Path) -> Path:
    """A project of somebody else's, with an environment that has our wheel, and pytest and pydantic from here."""
    environment(tmp_path / "env", wheel)
    project = tmp_path / "project"
    (project / "traces").mkdir(parents=True)
    make_of_world(project / "traces" / "run.jsonl", World(kind="adam"), 30)
    configuration, tests = re.findall(
        r"^```(?:toml|python)\n(.*?)^```$", (ROOT / "docs/testing.md").read_text(), re.M | re.S
    )
    (project / "pyproject.toml").write_text(configuration)
    (project / "test_compression.py").write_text(tests)
    return project


STRICTER = """
import sys
from pathlib import Path

LIGHT = sorted({"torch", "pydantic", "gravac_agent", "gravac_controller"} & set(sys.modules))

import gravac
from gravac.testing import assert_decisions


def test_the_plugin_is_light():
    assert LIGHT == []
    assert "env" in Path(gravac.__file__).parts


def test_stricter(gravac_trace):
    assert_decisions(gravac_trace("run.jsonl"), policy="auto:bound=0.01")


def test_absent(gravac_trace):
    gravac_trace("walk")


def test_still_no_torch():
    assert not {"torch", "gravac_agent", "gravac_controller"} & set(sys.modules)
"""


@pytest.mark.distributed
def test_the_plugin_works_from_a_wheel_in_a_foreign_project(foreign: Path) -> None:
    """The example of the docs passes; a rule that differs fails, and says where, what and why."""
    (foreign / "test_a_stricter_rule.py").write_text(STRICTER)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))
    }
    command = [str(foreign.parent / "env/bin/python"), "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=foreign,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout
    results = dict(re.findall(r"^test_\w+\.py::(\w+) (PASSED|FAILED|ERROR)", said, re.M))
    assert results == {
        "test_the_settings_of_the_run_still_decide_alike": "PASSED",
        "test_a_little_stricter_would_have_changed_nothing": "PASSED",
        "test_the_plugin_is_light": "PASSED",
        "test_still_no_torch": "PASSED",
        "test_stricter": "FAILED",
        "test_absent": "FAILED",
    }, said + done.stderr
    assert "run.jsonl: 31 decisions differ in 30 windows." in said
    assert "after window 0, step 9 (measured at CF 7.5):" in said
    assert (
        "recorded: CF 7.5, explore, start: On this network dense steps exchange gradients for about 1.61 s"
        in said
    )
    assert (
        "now:      CF 5.7, explore, start: On this network dense steps exchange gradients for about 1.61 s"
        in said
    )
    assert "no trace walk in " in said


PLUGIN = Path(__file__).parent / "support" / "plugin"
"""Source of a distribution with a codec, a memory and a policy, and with entry points that cannot be used."""


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with our wheel and the plugin's."""
    folder = tmp_path_factory.mktemp("plugin")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(PLUGIN))
    (made,) = folder.glob("*.whl")
    return environment(folder / "env", wheel, made)


def clean_environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "GRAVAC"))
    }
    # The kernels of a new environment would be compiled first, which takes half a minute and is not tested here.
    return {**kept, "OMP_NUM_THREADS": "1", "GRAVAC_KERNELS": "reference", **more}


@pytest.mark.distributed
def test_a_plugins_members_are_chosen_by_name(programs: Path, tmp_path: Path) -> None:
    """Lazily; broken and shadowing entry points are named with their distribution and stop nobody else."""
    done = subprocess.run(
        [programs / "python", "-W", "error", PLUGIN / "use.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = subprocess.run(
        [programs / "gravac", "codecs", "theirs"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "every step-th element" in listed.stdout
    assert "PluginWarning" in listed.stderr
    assert "compressor='unbuildable' of a plugin is left out" in listed.stderr
    assert "the plugin theirs-codec 1.2 (entry point broken = 'theirs:Missing'" in listed.stderr


@pytest.mark.distributed
def test_ranks_train_with_a_plugins_codec_unless_its_versions_differ(programs: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(PLUGIN / "theirs", newer / "theirs")
    (installed,) = programs.parent.glob("lib/python*/site-packages/theirs_codec-1.2.dist-info")
    (newer / "theirs_codec-1.3.dist-info").mkdir()
    for name in ("METADATA", "entry_points.txt"):
        text = (installed / name).read_text().replace("Version: 1.2", "Version: 1.3")
        (newer / "theirs_codec-1.3.dist-info" / name).write_text(text)
    for path, expected in (("", "trained"), (str(newer), "refused")):
        folder = tmp_path / expected
        folder.mkdir()
        ranks = [
            subprocess.Popen(
                [programs / "python", PLUGIN / "train.py", str(rank), str(folder)],
                cwd=folder,
                env=clean_environment(**({"PYTHONPATH": path} if rank and path else {})),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
        assert all(expected in one for one in said), said
        if path:
            for rank, version in enumerate(("1.2", "1.3")):
                assert f"rank {rank} has {{'gravac.compressors:theirs': 'theirs-codec {version}'" in said[1]
