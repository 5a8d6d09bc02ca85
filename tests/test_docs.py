"""The documents are true: links resolve, named files, commands and options exist, commands and examples run."""

import ast
import doctest
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import click
import pytest
from click.testing import CliRunner

from gravac.aggregators import AGGREGATORS
from gravac.collectives import COLLECTIVES
from gravac.compressors import COMPRESSORS
from gravac.memories import MEMORIES
from gravac.protocol import JobAnswer, WindowAnswer
from gravac_agent import settings
from gravac_controller.cli import LAB, MODULES, main
from tests.support.lab import HAS_LAB, needs_lab, skip_into_lab
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller
from tools.pages.catalogue import page as catalogue_page
from tools.pages.constants import constants, known_tests
from tools.pages.constants import page as constants_page
from tools.pages.findings import page as findings_page
from tools.pages.metrics import page as metrics_page
from tools.pages.settings import page as settings_page

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *([ROOT / "lab/benchmarks/README.md"] if HAS_LAB else []),
]
MADE_BY_USERS = (
    "gravac-runs/",
    "build/",
    "gravac/compressors/my",
    "gravac/compressors/sparse/my",
    "gravac/policies/my",
    "gravac/memories/my",
    "gravac/aggregators/my",
    "gravac/collectives/my",
)
"""Paths that a reader makes."""
BY_NAME = pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def commands(document: Path) -> Iterator[str]:
    """Every line of the shell blocks of a document, continued lines joined."""
    for block in blocks(document, "sh"):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line.strip())


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def sessions(document: Path) -> Iterator[tuple[str, str]]:
    """Every command of the console blocks of a document, with the output that is shown for it."""
    for block in blocks(document, "console"):
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = session.partition("\n")
            yield command, output


def test_there_are_documents() -> None:
    assert {"README.md", "ARCHITECTURE.md", "api.md", "settings.md", "catalogue.md", "promises.md"} <= {
        p.name for p in PAGES
    }


@BY_NAME
def test_no_merge_is_left_half_done(document: Path) -> None:
    assert not re.findall(r"^(?:<{7}|>{7}) .*", document.read_text(), re.MULTILINE)


@BY_NAME
def test_links_resolve(document: Path) -> None:
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    into_lab = []
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" in target:
            continue
        if not HAS_LAB and (document.parent / target).resolve().is_relative_to(ROOT / "lab"):
            into_lab.append(target)
            continue
        assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"
    skip_into_lab(into_lab)


@functools.cache
def repository() -> frozenset[str]:
    """Every file and folder of the repository, by its path; folders end in a slash."""
    if shutil.which("git") is None:
        pytest.skip("needs git (Debian: apt-get install git)")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    folders = {f"{parent}/" for name in files for parent in PurePosixPath(name).parents}
    return frozenset(files | folders)


def is_in_repository(name: str) -> bool:
    """Whether a path, or the end of one, is that of a file or folder here."""
    return any(path == name or path.endswith(f"/{name}") for path in repository())


@BY_NAME
def test_named_files_exist(document: Path) -> None:
    """Code spans that look like a path (`gravac/proof.py`, `static/`) or a source file (`proof.py`)."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    paths = re.findall(r"`((?:[\w.-]+/)+(?:[\w-][\w.-]*\.\w+)?)`", text)
    sources = re.findall(r"`([\w-]+\.(?:py|js))`", text)
    named = [name for name in (*paths, *sources) if not name.startswith(MADE_BY_USERS)]
    missing = {name for name in named if not is_in_repository(name)}
    # Of a room that is named without its folder, nobody can tell whether it was the laboratory's.
    of_lab = set() if HAS_LAB else {name for name in missing if re.fullmatch(r"lab/.*|\w+/", name)}
    assert missing == of_lab, f"{document.name} names files that are not there"
    skip_into_lab(of_lab)


def test_a_missing_file_would_be_found() -> None:
    assert is_in_repository("gravac/proof.py")
    assert is_in_repository("collectives/cost.py")
    assert is_in_repository("proof.py")
    assert is_in_repository("docker/")
    assert not is_in_repository("gravac/missing.py")
    assert not is_in_repository("roof.py")


@BY_NAME
def test_commands_and_options_exist(document: Path) -> None:
    inline = re.findall(
        r"`((?:OMP_NUM_THREADS=1 )?(?:gravac|make|torchrun|python|docker compose) [a-z-][^`]*)`",
        document.read_text(),
    )
    of_lab = []
    shown = [command for command, _ in sessions(document)]
    for line in [*commands(document), *shown, *inline]:
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if not HAS_LAB and runs_lab(words):
            of_lab.append(line)
        elif words[:1] == ["gravac"]:
            check_gravac(words[1:])
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
            arguments = next((word[5:] for word in words if word.startswith("ARGS=")), None)
            if arguments and words[1] == "demo":
                check_gravac(["demo", *shlex.split(arguments)])
        elif words[1:2] == ["-m"] and words[0] in ("python", ".venv/bin/python"):
            assert importlib.util.find_spec(words[2]) or "grafana" in words[2], line
        elif words[:1] in (["torchrun"], ["python"]):
            script = next((word for word in words if word.endswith(".py")), None)
            assert script is None or (ROOT / script).exists(), line
        elif words[:2] == ["docker", "compose"]:
            assert (ROOT / words[words.index("-f") + 1]).exists(), line
    skip_into_lab(of_lab)


def runs_lab(words: list[str]) -> bool:
    """Whether a command is one of the laboratory, or runs a program of it."""
    if words[:1] in (["gravac"], ["make"]):
        return MODULES.get("".join(words[1:2]), "").startswith(f"{LAB}.")
    return any(word.startswith(("lab.", "lab/")) for word in words[1:])


def check_gravac(words: list[str]) -> None:
    """The command exists, and so does every option given to it."""
    command: click.Command | None = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"there is no `{name}`"
    assert command is not None
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words[
        : words.index("--") if "--" in words else None
    ]:  # after that comes another program's command
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, f"gravac {' '.join(words)}"


REPEATABLE = [
    (document, command, output)
    for document in PAGES
    for command, output in sessions(document)
    if re.match(r"gravac (doctor --|codecs .*--parameters|\w+ tests/traces/)", command)
]
"""What needs no job: shown on a page, and the same wherever it is run."""


@pytest.mark.parametrize(
    ("document", "command", "output"),
    REPEATABLE,
    ids=[f"{document.stem}-{command}" for document, command, _ in REPEATABLE],
)
def test_a_shown_output_is_what_the_command_prints(
    document: Path, command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its lines are broken; `…` stands for what is left out."""
    monkeypatch.chdir(ROOT)
    printed = CliRunner().invoke(main, shlex.split(command)[1:]).stdout
    shown = ".*".join(map(re.escape, " ".join(output.split()).split("…")))
    assert re.fullmatch(shown, " ".join(printed.split())), printed


@BY_NAME
def test_python_parses_and_named_choices_exist(document: Path) -> None:
    """In code as in prose: `policy="auto:bound=0.05"`, `GRAVAC_MEMORY=conef:bits=4`."""
    for block in blocks(document, "python"):
        ast.parse(block)
    names = "policy|compressor|memory"
    given = re.findall(rf'\b({names})="([^"…]+)"', document.read_text())
    given += re.findall(rf"\bGRAVAC_({names.upper()})=([^\s`|]+)", document.read_text())
    for name, value in given:
        if not value.startswith("my"):
            settings.load(**{name.lower(): value})


def test_every_command_is_listed() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    for name in main.list_commands(click.Context(main)):
        assert f"gravac {name} " in text


def test_settings_page_is_fresh() -> None:
    written = (ROOT / "docs/settings.md").read_text()
    assert written == settings_page(), "python -m tools.pages.settings > docs/settings.md"


@needs_lab
@pytest.mark.distributed
def test_claims_page_is_fresh(tmp_path: Path) -> None:
    plot = tmp_path / "objectives.svg"
    command = [sys.executable, "-m", "lab.benchmarks.claims", "--plot", str(plot)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    again = "python -m lab.benchmarks.claims --plot docs/objectives.svg > docs/claims.md"
    assert found == (ROOT / "docs/claims.md").read_text(), again
    assert plot.read_bytes() == (ROOT / "docs/objectives.svg").read_bytes(), again


def test_constants_page_is_fresh_and_each_constant_has_a_test() -> None:
    known = known_tests()
    assert (ROOT / "docs/constants.md").read_text() == constants_page(known), (
        "python -m tools.pages.constants"
    )
    names = {name for each in constants() for name in each.names}
    assert len(names) > 50
    assert known.keys() == names, "python -m tools.pages.constants --find"
    for test in known.values():
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(), test


def test_findings_page_is_fresh() -> None:
    written = (ROOT / "docs/findings.md").read_text()
    assert written == findings_page(), "python -m tools.pages.findings > docs/findings.md"


def test_metrics_page_is_fresh() -> None:
    written = (ROOT / "docs/metrics.md").read_text()
    assert written == metrics_page(), "python -m tools.pages.metrics > docs/metrics.md"


def test_catalogue_page_is_fresh_and_its_links_land() -> None:
    written = (ROOT / "docs/catalogue.md").read_text()
    assert written == catalogue_page(), "python -m tools.pages.catalogue > docs/catalogue.md"
    headings = re.findall(r"^### (.*)$", written, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", written)) == anchors
    assert len(anchors) == len(headings)


@pytest.mark.parametrize(
    "document", [page for page in PAGES if blocks(page, "pycon")], ids=lambda path: path.stem
)
def test_a_python_session_prints_what_is_shown(document: Path) -> None:
    text = "\n".join(blocks(document, "pycon"))
    session = doctest.DocTestParser().get_doctest(text, {}, document.name, str(document), 0)
    assert session.examples
    printed = list[str]()
    assert not doctest.DocTestRunner().run(session, out=printed.append).failed, "".join(printed)


def test_the_readme_is_read_in_a_minute() -> None:
    text = (ROOT / "README.md").read_text()
    (example,) = blocks(ROOT / "README.md", "python")
    # Each has its reason: import, with, for, backward, clip, step, zero_grad. Only a semicolon would make six of them.
    assert len([line for line in example.splitlines() if line.strip()]) == 7
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Ask", "Use", "Does it pay?", "Try", "Limits", "Links"]
    assert blocks(ROOT / "README.md", "sh")[0].startswith("gravac observe -- torchrun ")
    assert len(text.split()) < 600


TRAINING = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
criterion = torch.nn.CrossEntropyLoss()
before = model.module.weight.detach().clone()
# Here stands the example.
assert not torch.equal(before, model.module.weight)
dist.destroy_process_group()
"""


CHECKPOINTED = """
def trained(inside, **way):
    with gravac.Agent(model, optimizer, **way) as agent:
        inside(agent)
        for inputs, targets in loader[: 3 - agent.state.step]:
            criterion(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert agent.state.step == 3
        save("all", model, optimizer, agent)
        save_one(".", 0, model, optimizer, agent)

trained(lambda agent: None)
trained(lambda agent: load("all", model, optimizer, agent))
trained(lambda agent: load_one(".", 0, model, optimizer, agent))
trained(lambda agent: load_all(".", 1, agent))
"""


@pytest.mark.distributed
@pytest.mark.parametrize("document", ["README.md", "docs/start.md", "docs/frameworks/deepspeed.md"])
def test_the_example_trains(document: str, tmp_path: Path) -> None:
    (example,) = blocks(ROOT / document, "python")
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("# Here stands the example.", example))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "rendezvous")],
        cwd=tmp_path,
        env={**os.environ, "GRAVAC_CONTROLLER": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ended after 3 steps" in done.stderr


@pytest.mark.distributed
def test_the_checkpoint_examples_run(tmp_path: Path) -> None:
    """In one process: both ways to save, each loaded by a new agent. Real ranks: tests/ranks/test_checkpoint.py."""
    code = "\n".join(blocks(ROOT / "docs/checkpoints.md", "python"))
    script = tmp_path / "train.py"
    script.write_text(TRAINING.replace("# Here stands the example.", code + CHECKPOINTED))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "rendezvous")],
        cwd=tmp_path,
        env={**os.environ, "GRAVAC_CONTROLLER": "none", "GRAVAC_POLICY": "static:cf=4"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_architecture_names_every_room() -> None:
    """And no room that is not there: the first column of its tables, under the folder of each package."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in ("gravac", "agent/gravac_agent", "controller/gravac_controller", "observe/gravac_observe"):
        _, _, table = text.partition(f"**`{folder}/`**")
        table = table.strip().partition("\n\n")[0]
        cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
        named = {name for cell in cells for name in re.findall(r"`([^`]*)`", cell)}
        rooms = {f"{path.parent.name}/" for path in (ROOT / folder).glob("*/__init__.py")}
        assert rooms == {name for name in named if name.endswith("/")}, folder
        assert all((ROOT / folder / name).exists() for name in named), folder


def test_promises_are_all_there() -> None:
    text = (ROOT / "docs/promises.md").read_text()
    rows = dict(re.findall(r"^\| (P\d+) \|(.*)$", text, re.MULTILINE))
    assert set(rows) == {f"P{number}" for number in range(1, 13)}
    assert all("](../" in row for row in rows.values()), "each row links to its tests"


@contextmanager
def serving(folder: Path) -> Iterator[Controller]:
    """A controller with three windows of ``my-job``."""
    running = Controller(folder / "runs", env={"GRAVAC_CONTROLLER_CONTROL_TOKEN": CONTROL_TOKEN})
    try:
        answer = running.ask("POST", "/v1/jobs", spec("my-job"))
        decision = JobAnswer.model_validate_json(answer.body).decision
        trainer = Trainer("my-job")
        for _ in range(3):
            answer = running.ask("POST", "/v1/jobs/my-job/windows", trainer.report(decision))
            decision = WindowAnswer.model_validate_json(answer.body).decision
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with serving(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """The same, where no test adds a job or gives an order."""
    with serving(tmp_path_factory.mktemp("shown")) as running:
        yield running


REST = ROOT / "docs/api.md"
CONTROL_TOKEN = "an-operators-token-0123456789abc"


@pytest.mark.distributed
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl (Debian: apt-get install curl)")
def test_rest_commands_run(controller: Controller, tmp_path: Path) -> None:
    for name, body in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", REST.read_text(), re.DOTALL):
        (tmp_path / name).write_text(body)
    assert {path.name for path in tmp_path.iterdir()} == {"job.json", "window.json"}
    environment = {**os.environ, "URL": controller.url, "JOB": "my-job", "CONTROL_TOKEN": CONTROL_TOKEN}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    ran = 0
    for line in commands(REST):
        if re.match(r"(URL|JOB)=", line):
            continue
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        if "--max-time" in line:
            assert done.returncode == 28, line  # curl's code for the time it was given being over
        else:
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout or "-o " in line, line
        ran += 1
    assert ran > 15


@pytest.mark.distributed
def test_the_python_example_runs(controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(REST, "python")
    assert "http://127.0.0.1:8756" in example
    exec(example.replace("http://127.0.0.1:8756", controller.url), {})
    printed = capsys.readouterr().out
    assert "my-job CF" in printed
    assert "First 2 dense windows" in printed


SHOWN = re.compile(r"^```(sh|python)\n((?:(?!```).*\n)*)```\n\n```text\n((?:(?!```).*\n)*)```$", re.MULTILINE)
"""A command or a program, and directly below it what it prints. `…` stands for what is left out."""


@pytest.mark.distributed
@pytest.mark.parametrize(
    "document", ["api", "page", "monitoring", "security", "codecs", "collectives", "efficiency"]
)
def test_what_a_page_shows_is_what_is_printed(
    document: str, unchanged: Controller, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, "GRAVAC_CONTROLLER": unchanged.url}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    shown = SHOWN.findall((ROOT / f"docs/{document}.md").read_text())
    assert shown
    for language, code, output in shown:
        here = code.replace("http://127.0.0.1:8756", unchanged.url)
        if language == "python":
            exec(here, {})
            printed = capsys.readouterr().out
        else:
            done = subprocess.run(
                ["bash", "-c", here],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            printed = done.stdout.replace(unchanged.url, "http://127.0.0.1:8756")
        pattern = ".*".join(map(re.escape, output.strip().split("…")))
        assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{code}\n{printed}"


@pytest.mark.distributed
def test_every_route_is_on_the_rest_page(controller: Controller) -> None:
    paths = controller.ask("GET", "/openapi.json").json["paths"]
    assert len(paths) > 10
    for path, methods in paths.items():
        for method in methods:
            shown = re.escape(path).replace(r"\{job\}", r"(\$JOB|made-by-hand)") + r'["?\s]'
            lines = [line for line in commands(REST) if re.search(shown, line + " ")]
            if method in ("post", "put"):
                lines = [line for line in lines if " -d " in line and ("-X PUT" in line) == (method == "put")]
            assert lines, f"{method} {path} has no command in docs/api.md"


@pytest.mark.distributed
def test_the_documented_token_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """And no other document makes one that others can read."""
    makes = [line for page in PAGES for line in commands(page) if re.search(r"> *\S*token", line)]
    assert makes
    for number, line in enumerate(makes):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = line.replace("python -c", f"{shlex.quote(sys.executable)} -c")
        subprocess.run(["bash", "-c", f"umask 022; {command}"], cwd=folder, check=True)
        (made,) = folder.iterdir()
        assert made.stat().st_mode & 0o077 == 0, line
        assert len(made.read_text().strip()) >= 32


def sources() -> Iterator[Path]:
    for folder in ("gravac", "agent", "controller", "observe"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_what_to_install_works_where_it_is_read() -> None:
    """Messages are read where gravac is installed, and from any folder; `.[extra]` works in a clone only."""
    for path in sources():
        assert not re.search(r"""pip install ['"]?\.\[""", path.read_text()), path
    for page in PAGES:
        for line in page.read_text().splitlines():
            if re.search(r"""pip install ['"]?\.""", line):
                assert "in a clone" in line, f"{page.name}: {line}"


def test_who_has_no_gpu_is_spared_cuda() -> None:
    """PyPI's torch for Linux brings gigabytes of it: each page that installs for a CPU names its index."""
    pages = [page for page in PAGES if 'pip install ".[cpu]"' in page.read_text()]
    assert {"README.md", "start.md", "index.md"} <= {page.name for page in pages}
    for page in pages:
        spared = page.read_text().find("pip install torch --index-url https://download.pytorch.org/whl/cpu")
        assert -1 < spared < page.read_text().find('pip install ".[cpu]"'), page.name


def test_the_change_log_counts_what_there_is() -> None:
    """In words, as ``five collectives``."""
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    counted = re.findall(
        r"\b(\w+)\s+(?:error\s+)?(codecs|aggregators|memories|collectives)\b",
        (ROOT / "CHANGELOG.md").read_text(),
    )
    kinds = {
        "codecs": COMPRESSORS,
        "aggregators": AGGREGATORS,
        "memories": MEMORIES,
        "collectives": COLLECTIVES,
    }
    assert {kind for _, kind in counted} == set(kinds)
    for number, kind in counted:
        there = len(set(kinds[kind].names()) - {"dense", "none"})
        if number == "thirty":
            assert there > 30
        else:
            assert words.index(number) == there, f"{number} {kind}: there are {there}"


def test_no_source_names_a_document_that_is_not_here() -> None:
    for path in (*sources(), *PAGES):
        assert not re.search(r"\bDESIGN\b|\breference/\w+\.md", path.read_text()), path
