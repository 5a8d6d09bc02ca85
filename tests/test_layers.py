"""Who may import whom (ARCHITECTURE.md), and house rules a reader cannot be trusted to keep."""

import ast
import functools
from collections.abc import Callable
from pathlib import Path

from gravac_controller.cli import COMMANDS, MODULES

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "gravac": ROOT / "gravac",
    "gravac_agent": ROOT / "agent" / "gravac_agent",
    "gravac_controller": ROOT / "controller" / "gravac_controller",
}
FORBIDDEN = {
    # The mathematics: no sockets, no clocks, no web, none of the layers above.
    "gravac": {
        "gravac_agent",
        "gravac_controller",
        "asyncio",
        "fastapi",
        "http",
        "prometheus_client",
        "socket",
        "subprocess",
        "threading",
        "time",
        "urllib",
        "uvicorn",
    },
    # Inside the trainer: the standard library's HTTP is enough there.
    "gravac_agent": {
        "gravac_controller",
        "fastapi",
        "starlette",
        "uvicorn",
        "prometheus_client",
        "click",
        "rich",
    },
    # Beside it: needs no torch.
    "gravac_controller": {"gravac_agent", "torch"},
}
FILES = [(package, file) for package, folder in PACKAGES.items() for file in sorted(folder.rglob("*.py"))]


@functools.cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def called(file: Path) -> set[str]:
    """Functions called by their bare name."""
    return {
        node.func.id for node in nodes(file) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def breaking(rule: Callable[[str, Path], object]) -> dict[str, object]:
    """What the rule has against each file; nothing against most."""
    return {str(file.relative_to(ROOT)): found for package, file in FILES if (found := rule(package, file))}


def test_there_is_something_to_check() -> None:
    assert {package for package, _ in FILES} == set(PACKAGES)
    assert imported(ROOT / "agent/gravac_agent/reporting/client.py") >= {"http", "socket", "threading"}
    assert "len" in called(ROOT / "gravac/traces/trace.py")


def test_layers() -> None:
    assert breaking(lambda package, file: imported(file) & FORBIDDEN[package]) == {}


def test_no_pickle() -> None:
    pickles = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    assert breaking(lambda _, file: imported(file) & pickles) == {}


def test_no_eval() -> None:
    assert breaking(lambda _, file: called(file) & {"eval", "exec", "compile", "__import__"}) == {}


def test_no_long_file() -> None:
    """Split it: one idea a file."""

    def too_long(_: str, file: Path) -> int | None:
        lines = file.read_text().count("\n")
        return lines if lines > 400 else None

    assert breaking(too_long) == {}


def test_the_folders_of_packages_are_not_packages() -> None:
    """A user's own ``agent.py`` must not be shadowed."""
    assert not (ROOT / "agent" / "__init__.py").exists()
    assert not (ROOT / "controller" / "__init__.py").exists()


def test_the_controller_runs_where_there_is_no_torch() -> None:
    """Its imports reach torch through nothing of ours."""
    import subprocess
    import sys

    code = "import sys; sys.modules['torch'] = None; import gravac_controller.api.app"
    code += "".join(f"; import gravac_controller.cli.{MODULES.get(name, name)}" for name in COMMANDS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
