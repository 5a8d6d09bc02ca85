"""Who may import whom (ARCHITECTURE.md), the order of rooms in each package, and limits on files and rooms."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

from gravac.policies import AutoPolicy
from gravac_controller.cli import COMMANDS, MODULES
from tests.support.lab import HAS_LAB

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "gravac": ROOT / "gravac",
    "gravac_agent": ROOT / "agent" / "gravac_agent",
    "gravac_controller": ROOT / "controller" / "gravac_controller",
    "gravac_observe": ROOT / "observe" / "gravac_observe",
    "gravac_lab": ROOT / "lab" / "gravac_lab",
}
FORBIDDEN = {
    # The mathematics: no sockets, no clocks, no web, none of the layers above.
    "gravac": {
        "gravac_agent",
        "gravac_controller",
        "gravac_lab",
        "gravac_observe",
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
        "gravac_lab",
        "gravac_observe",
        "fastapi",
        "starlette",
        "uvicorn",
        "prometheus_client",
        "click",
        "rich",
    },
    # Beside it: needs no torch.
    "gravac_controller": {"gravac_agent", "gravac_lab", "gravac_observe", "torch"},
    # In front of a training: it shows what it finds by the command line and the page of the controller.
    "gravac_observe": {"gravac_agent", "gravac_lab", "fastapi", "prometheus_client", "starlette", "uvicorn"},
    # The laboratory uses everything; nothing uses it.
    "gravac_lab": set(),
}
ALLOWED = {"gravac/collectives/simulated.py": {"threading"}, "gravac/token_connection.py": {"http", "urllib"}}
"""By file: the simulated world has a thread for each rank, since an aggregator waits for the others within a call.
Agents and clients of the controller have one way to keep a token from programs that do not know it."""
ROOMS: dict[str, tuple[set[str], ...]] = {
    "gravac": (
        {"codec_text"},
        {"offers", "proof", "transaction", "version", "wording"},
        {"findings", "registry", "token_connection"},
        {"protocol"},
        {"kernels"},
        {"compressors", "optim"},
        {"memories"},
        {"collectives"},
        {"aggregators"},
        {"signals"},
        {"policies"},
        {"fold"},
        {"traces"},
        {"replays"},
        {"predict"},
        {"catalogue", "testing"},
        {"pytest_plugin"},
    ),
    "gravac_agent": (
        {"errors"},
        {"devices", "network", "sinks"},
        {"settings"},
        {"exchange"},
        {"streams"},
        {"fsdp", "reporting"},
        {"windows"},
        {"setup"},
        {"run_log", "state"},
        {"steps"},
        {"session"},
        {"agent"},
        {"integrations"},
    ),
    "gravac_controller": (
        {"errors", "hosts", "safe_text"},
        {"lock", "settings"},
        {"page", "views"},
        {"live"},
        {"jobs", "metrics"},
        {"api"},
        {"server"},
        {"replay"},
        {"client", "report"},
        {"cli"},
        {"__main__"},
    ),
    "gravac_observe": (
        {"record", "traces"},
        {"measure"},
        {"findings"},
        {"page"},
        {"judged"},
        {"command"},
    ),
    "gravac_lab": (
        {"estimators", "tasks", "tournament"},
        {"programs"},
        {"simulate"},
        {"bench"},
        {"demo"},
        {"cli"},
    ),
}
"""The rooms of each package, lower ones first. A room (a folder, or a module beside the folders) may import rooms in
lower rows, not its neighbors in the row nor those above, so there is no cycle. ``__init__`` of a package is its public
face, which may import every room."""
HTTP = {"fastapi", "starlette", "uvicorn"}
SMALL_LINES = 60
SMALL_FILES = 29
"""Files of at most ``SMALL_LINES`` lines in all packages, without ``__init__.py``. There were 113 at first."""
ROOM_FILES = 15
"""Modules in one folder, without ``__init__.py`` and folders."""
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


def room(package: str, file: Path) -> str:
    """The folder or module directly below the package."""
    return file.relative_to(PACKAGES[package]).parts[0].removesuffix(".py")


def rooms_imported(package: str, file: Path) -> set[str]:
    """The rooms of its own package that a file imports, also inside functions."""
    names: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    known = set().union(*ROOMS[package])
    found = {parts[1] for name in names if (parts := name.split("."))[0] == package and len(parts) > 1}
    return found & known - {room(package, file)}


def called(file: Path) -> set[str]:
    """Functions called by their bare name."""
    return {
        node.func.id for node in nodes(file) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def breaking(rule: Callable[[str, Path], object]) -> dict[str, object]:
    """The files that break a rule, with what the rule returned for them."""
    return {str(file.relative_to(ROOT)): found for package, file in FILES if (found := rule(package, file))}


def test_there_is_something_to_check() -> None:
    assert {package for package, _ in FILES} == set(PACKAGES) - (set() if HAS_LAB else {"gravac_lab"})
    assert imported(ROOT / "agent/gravac_agent/reporting/connection.py") >= {"http", "socket", "threading"}
    assert "len" in called(ROOT / "gravac/traces/reader.py")


def test_layers() -> None:
    """The public face of ``gravac`` names the packages above it, but imports them at first use only (see below)."""

    def forbidden(package: str, file: Path) -> set[str]:
        found = imported(file) & FORBIDDEN[package]
        found -= ALLOWED.get(str(file.relative_to(ROOT)), set())
        return found - set(PACKAGES) if file == PACKAGES["gravac"] / "__init__.py" else found

    assert breaking(forbidden) == {}


def test_the_recorder_imports_nothing_of_gravac() -> None:
    """It runs in trainings that have no gravac. Types cross only where a type checker looks."""
    files = sorted((PACKAGES["gravac_observe"] / "record").rglob("*.py"))
    assert len(files) == 4
    for file in files:
        tree = ast.parse(file.read_text())
        checked = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
        typed = {id(inner) for node in checked for inner in ast.walk(node)}
        found = {
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typed
        }
        assert not any("gravac" in each for each in found), file
        assert not any("page" in each or "measure" in each for each in map(ast.unparse, checked)), file


def test_only_what_shows_uses_the_controller() -> None:
    """Traces, measures and findings of ``gravac observe`` need gravac alone."""

    def shows(package: str, file: Path) -> set[str]:
        allowed = package != "gravac_observe" or room(package, file) in {"page", "judged", "command"}
        return set() if allowed else imported(file) & {"gravac_controller", "click", "rich"}

    assert breaking(shows) == {}


def test_observe_is_small() -> None:
    lines = sum(file.read_text().count("\n") for package, file in FILES if package == "gravac_observe")
    assert lines <= 4000


@pytest.mark.distributed
def test_importing_gravac_imports_none_of_the_packages_above() -> None:
    heavy = "{'fastapi', 'gravac_agent', 'gravac_controller', 'gravac_observe', 'pydantic', 'torch'}"
    code = f"import sys, gravac; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_room_imports_one_above_it() -> None:
    def upward(package: str, file: Path) -> set[str]:
        here = room(package, file)
        if here == "__init__":
            return set()
        below: set[str] = set()
        for row in ROOMS[package]:
            if here in row:
                return rooms_imported(package, file) - below
            below |= row
        return {f"{here} is not in ROOMS"}

    assert breaking(upward) == {}


def test_no_two_modules_import_each_other() -> None:
    """Also not inside functions, which is how a circle hides."""
    modules = {
        ".".join((package, *file.relative_to(PACKAGES[package]).with_suffix("").parts)): file
        for package, file in FILES
        if file.name != "__init__.py"
    }

    def targets(file: Path) -> set[str]:
        return {
            name
            for node in nodes(file)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        }

    edges = {(name, other) for name, file in modules.items() for other in targets(file) & modules.keys()}
    assert len(edges) > 1000
    assert {edge for edge in edges if edge[::-1] in edges} == set()


def test_only_the_http_rooms_know_http() -> None:
    """Domain code raises the errors of ``gravac_controller.errors``."""

    def knows_http(package: str, file: Path) -> set[str]:
        allowed = room(package, file) in {"api", "server"} or file.match("replay/server.py")
        return set() if allowed else imported(file) & HTTP

    assert breaking(knows_http) == {}


def test_no_room_has_too_many_modules() -> None:
    sizes = Counter(file.parent for _, file in FILES if file.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): n for folder, n in sizes.items() if n > ROOM_FILES} == {}


def test_folders_of_tests_are_those_of_rooms() -> None:
    """So ``test_x.py`` stands where module ``x`` does."""
    for package, folder in PACKAGES.items():
        tests = ROOT / "tests" / package.removeprefix("gravac_")
        rooms = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
        assert all((folder / room).is_dir() for room in rooms), package
        assert package == "gravac_lab" or rooms


def test_few_files_are_crumbs() -> None:
    small = [
        str(file.relative_to(ROOT))
        for _, file in FILES
        if file.name != "__init__.py" and file.read_text().count("\n") <= SMALL_LINES
    ]
    assert len(small) <= SMALL_FILES, small


def test_no_pickle() -> None:
    pickles = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    assert breaking(lambda _, file: imported(file) & pickles) == {}


PICKLING = {"all_gather_object", "gather_object"} | {
    f"{how}_object_list" for how in ("broadcast", "scatter", "send", "recv")
}


def test_no_pickle_between_ranks_or_from_files() -> None:
    """Rule 11 of docs/security.md. torch pickles what these exchange, and reads any object without ``weights_only``."""

    def pickling(_: str, file: Path) -> set[str]:
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        named = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
        unsafe = {
            "torch.load"
            for call in calls
            if ast.unparse(call.func) == "torch.load" and "weights_only=True" not in ast.unparse(call)
        }
        return named & PICKLING | unsafe

    assert breaking(pickling) == {}
    for file in (ROOT / "tools").rglob("*.py"):
        assert not pickling("", file), file


def test_no_eval() -> None:
    assert breaking(lambda _, file: called(file) & {"eval", "exec", "compile", "__import__"}) == {}


MAKERS = {
    f"torch.{one.__name__}" for one in _device_constructors() if getattr(torch, one.__name__, None) is one
}
"""What makes a tensor on the default device, where no device is named."""


def test_tensors_name_their_device() -> None:
    """Else ``torch.set_default_device`` would put them where no gradient is."""

    def nowhere(package: str, file: Path) -> list[str]:
        calls = [node for node in nodes(file) if isinstance(node, ast.Call)]
        return [
            f"line {call.lineno}: {ast.unparse(call)}"
            for call in calls
            if package in ("gravac", "gravac_agent")
            and ast.unparse(call.func) in MAKERS
            and not any(keyword.arg in ("device", None) for keyword in call.keywords)
        ]

    assert {"torch.empty", "torch.tensor", "torch.arange"} < MAKERS
    assert breaking(nowhere) == {}


def test_the_folders_of_packages_are_not_packages() -> None:
    """A user's own ``agent.py`` must not be shadowed."""
    assert not (ROOT / "agent" / "__init__.py").exists()
    assert not (ROOT / "controller" / "__init__.py").exists()


@pytest.mark.distributed
def test_the_controller_runs_where_there_is_no_torch() -> None:
    """None of its imports needs torch, and it knows what codecs offer to policy ``auto``."""
    code = "import sys; sys.modules['torch'] = None; import gravac_controller.api.app"
    modules = (MODULES.get(name, f"gravac_controller.cli.{name}") for name in COMMANDS)
    code += "".join(f"; import {module}" for module in modules if not module.startswith("gravac_lab"))
    code += "; from gravac.policies import AutoPolicy; print(len(AutoPolicy().plans('topk+bf16')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(AutoPolicy().plans("topk+bf16")) > 20


def test_a_class_name_stands_for_one_class() -> None:
    """Frameworks each have a ``GravacCallback``."""
    names = Counter(
        node.name
        for _, file in FILES
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name: count for name, count in names.items() if count > 1} == {"GravacCallback": 2}


MOST_ATTRIBUTES = 12
SPLIT = {"HttpReporter", "LiveJob", "Session", "StepLoop"}
"""Classes that had 26 to 34 attributes each. What they do is now shared with others, each of which has a name."""


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class gives its objects: in its methods, and as fields."""
    fields = {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    }
    return fields | {
        found.attr
        for found in ast.walk(node)
        if isinstance(found, ast.Attribute)
        and isinstance(found.ctx, ast.Store)
        and ast.unparse(found.value) == "self"
    }


def test_what_was_split_stays_small() -> None:
    found = {
        node.name: attributes(node)
        for _, file in FILES
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name in SPLIT
    }
    assert found.keys() == SPLIT
    assert {name: names for name, names in found.items() if len(names) > MOST_ATTRIBUTES} == {}


HEADLESS = {
    *(
        "After",
        "And",
        "As",
        "At",
        "Before",
        "Beside",
        "Between",
        "By",
        "Equal",
        "For",
        "From",
        "If",
        "In",
        "Into",
    ),
    *("Not", "Of", "On", "Or", "Since", "That", "To", "Until", "While", "With", "Without"),
}
"""Words that an attribute's text does not begin with: a noun or "Whether" says what it is."""


def test_what_an_attribute_is_begins_with_a_noun() -> None:
    """Also in the ``Attributes`` of a class."""
    headless, seen = [], 0
    for _, file in FILES:
        for node in nodes(file):
            body = getattr(node, "body", None)
            pairs = pairwise(body) if isinstance(body, list) else ()
            texts = [
                text_of(after) for before, after in pairs if isinstance(before, ast.Assign | ast.AnnAssign)
            ]
            if isinstance(node, ast.ClassDef):
                _, _, attributes = (ast.get_docstring(node) or "").partition("\nAttributes:\n")
                texts += re.findall(r"^    \w+: (.*)", attributes.partition("\n\n")[0], re.MULTILINE)
            texts = [text for text in texts if text]
            seen += len(texts)
            headless += [
                f"{file.name}: {text[:60]}" for text in texts if re.split(r"\W", text)[0] in HEADLESS
            ]
    assert headless == []
    assert seen > 1000


def text_of(statement: ast.stmt) -> str:
    """Return the text of a statement that is one; else nothing."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
