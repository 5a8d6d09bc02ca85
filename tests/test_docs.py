"""The documents say what is so: links resolve, commands and options exist, the REST page's commands run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gravac.protocol import JobAnswer, WindowAnswer
from gravac_controller.cli import main
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller
from tools.pages.catalogue import page as catalogue_page
from tools.pages.metrics import page as metrics_page
from tools.pages.settings import page as settings_page

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"]
BY_NAME = pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def commands(document: Path) -> Iterator[str]:
    """Every line of the shell blocks of a document, continued lines joined."""
    for block in blocks(document, "sh"):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line.strip())


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


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
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (document.parent / target).exists(), (
                f"{document.name} links to {target}, which is not there"
            )


@BY_NAME
def test_named_files_exist(document: Path) -> None:
    """Paths in code style, such as `gravac/protocol/window.py`."""
    folders = "gravac|agent|controller|tests|docs|examples|benchmarks|dashboards|docker|tools"
    for name in re.findall(rf"`((?:{folders})/[\w/.-]+\.\w+)`", document.read_text()):
        assert (ROOT / name).exists() or "my" in name, f"{document.name} names {name}, which is not there"


@BY_NAME
def test_commands_and_options_exist(document: Path) -> None:
    inline = re.findall(r"`(gravac [a-z][^`]*|make [a-z][^`]*|torchrun [^`]*)`", document.read_text())
    for line in [*commands(document), *inline]:
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[:1] == ["gravac"]:
            check_gravac(words[1:])
        elif words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
            arguments = next((word[5:] for word in words if word.startswith("ARGS=")), None)
            if arguments and words[1] == "demo":
                check_gravac(["demo", *shlex.split(arguments)])
        elif words[:2] == [".venv/bin/python", "-m"]:
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), line
        elif words[:1] == ["torchrun"]:
            script = next((word for word in words if word.endswith(".py")), None)
            assert script is None or (ROOT / script).exists(), line


def check_gravac(words: list[str]) -> None:
    """The command exists, and so does every option given to it."""
    command: click.Command | None = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"there is no `{name}`"
    assert command is not None
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, f"gravac {' '.join(words)}"


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for name in main.list_commands(click.Context(main)):
        assert f"gravac {name} " in text


def test_settings_page_is_fresh() -> None:
    written = (ROOT / "docs/settings.md").read_text()
    assert written == settings_page(), "python -m tools.pages.settings > docs/settings.md"


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


def test_the_readmes_diff_is_python() -> None:
    (diff,) = blocks(ROOT / "README.md", "diff")
    assert all(line[:1] in ("+", " ", "") for line in diff.splitlines())
    compile("\n".join(line[1:] for line in diff.splitlines()), "README.md", "exec")


def test_promises_are_all_there() -> None:
    text = (ROOT / "docs/promises.md").read_text()
    rows = dict(re.findall(r"^\| (P\d+) \|(.*)$", text, re.MULTILINE))
    assert set(rows) == {f"P{number}" for number in range(1, 12)}
    assert all("](../" in row for row in rows.values()), "each names what holds us to it"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller with three windows of ``my-job``."""
    folder = tmp_path_factory.mktemp("rest")
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


REST = ROOT / "docs/api.md"
CONTROL_TOKEN = "an-operators-token-0123456789abc"


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


def test_the_python_example_runs(controller: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks(REST, "python")
    assert "http://127.0.0.1:8756" in example
    exec(example.replace("http://127.0.0.1:8756", controller.url), {})
    told = capsys.readouterr().out
    assert "my-job CF" in told
    assert "First 2 dense windows" in told


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
    for folder in ("gravac", "agent", "controller"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_what_to_install_works_where_it_is_read() -> None:
    """Messages are read where gravac is installed, and from any folder; `.[extra]` works in a clone only."""
    for path in sources():
        assert not re.search(r"""pip install ['"]?\.\[""", path.read_text()), path
    for page in PAGES:
        for line in page.read_text().splitlines():
            if re.search(r"""pip install ['"]?\.""", line):
                assert "in a clone" in line, f"{page.name}: {line}"


def test_no_source_names_a_document_that_is_not_here() -> None:
    for path in (*sources(), *PAGES):
        assert not re.search(r"\bDESIGN\b|\breference/\w+\.md", path.read_text()), path
