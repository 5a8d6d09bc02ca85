"""Writes docs/constants.md from the code: python -m tools.pages.constants [--find NAME ...].

Which test fails when a constant is changed is kept from the page as it is. ``--find`` finds it: for these constants, or
for all that have none on the page, it changes the value and runs ``TESTS`` until one fails.
"""

import argparse
import ast
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "constants.md"
ROOMS = ("gravac/policies/auto/*.py", "gravac/policies/trials.py", "gravac/signals/*.py")
TESTS = (
    "gravac/policies/auto/test_beliefs.py",
    "gravac/policies/auto/test_promises.py",
    "gravac/signals/test_efficiency.py",
    "gravac/signals/test_risk.py",
    "gravac/signals/test_loss_slope.py",
)
HEAD = """# Constants of the decisions

Made from the code by `tools/pages/constants.py`; a test fails when this page is out of date. These numbers are not
settings: a change of one changes what `auto` decides, or what risk is shown. "Chosen" is a judgment; the others say
where they come from. The last column names a test that fails when the value is half as large again, two thirds of it,
or a count one higher.
"""


class Constant(NamedTuple):
    """Constants that are assigned together and share a description."""

    module: str
    names: tuple[str, ...]
    values: tuple[Any, ...]
    meaning: str
    unit: str
    source: str


def constants() -> Iterator[Constant]:
    """Yield the numbers that the rooms' modules assign to public names. Raises ValueError for one without a unit."""
    for file in (file for room in ROOMS for file in sorted(ROOT.glob(room))):
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        body = ast.parse(file.read_text()).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or any(map(_computed, ast.walk(node))):
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            each = target.elts if isinstance(target, ast.Tuple) else [target]
            names = tuple(ast.unparse(one) for one in each)
            values = tuple(getattr(module, name) for name in names)
            if names[0][0].isupper() and names[0].isupper() and any(mutants(value) for value in values):
                text = after.value if isinstance(after, ast.Expr) else None
                words = " ".join(str(text.value).split()) if isinstance(text, ast.Constant) else ""
                found = re.fullmatch(r"(.*?)\s*\[([^;]*); ([^]]*)\]", words)
                if found is None:
                    raise ValueError(f"{file}: end the docstring of {names[0]} with [unit; source]")
                yield Constant(module.__name__, names, values, *found.groups())


def _computed(node: ast.AST) -> bool:
    """Return whether an expression is no literal number: a call, or a loop."""
    return isinstance(node, ast.Call | ast.comprehension)


def mutants(value: Any) -> list[Any]:
    """Return other values: a count one higher, a number half as large again and two thirds of it, in each place."""
    if isinstance(value, int | float):
        return [value + 1] if isinstance(value, int) else [1.5 * value, 0.67 * value]
    if isinstance(value, dict):
        return [{**value, key: new} for key, old in value.items() for new in mutants(old)]
    if isinstance(value, tuple):
        return [(*value[:at], new, *value[at + 1 :]) for at, old in enumerate(value) for new in mutants(old)]
    return []


def page(tests: Mapping[str, str]) -> str:
    """Return the whole page. ``tests``: the test that fails, by constant."""
    lines, module = [HEAD], ""
    for each in constants():
        if each.module != module:
            module = each.module
            lines += [
                f"\n## {module}\n",
                "| Name | Value | Unit | From | Meaning | Test |",
                "|---|---|---|---|---|---|",
            ]
        names = ", ".join(f"`{name}`" for name in each.names)
        values = ", ".join(_shown(value) for value in each.values)
        found = ", ".join(f"`{tests.get(name, '')}`" for name in each.names)
        meaning = each.meaning.replace("|", "\\|").replace("``", "`")
        lines.append(f"| {names} | {values} | {each.unit} | {each.source} | {meaning} | {found} |")
    return "\n".join(lines) + "\n"


def known_tests() -> dict[str, str]:
    """Return the test of each constant by the page as it is."""
    rows = (
        (line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `"))
        if PAGE.exists()
        else ()
    )
    pairs = ((re.findall(r"`(\w*)`", row[0]), re.findall(r"`([\w:/.]*)`", row[-1])) for row in rows)
    return {name: test for names, tests in pairs for name, test in zip(names, tests, strict=True) if test}


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return " ".join(map(_shown, value)) if isinstance(value, tuple) else str(value)


class Finder:
    """A plugin of pytest that runs the tests once for each changed constant, in a process of its own."""

    def __init__(self, asked: frozenset[str], tests: dict[str, str]) -> None:
        self.asked, self.tests = asked, tests

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for each in constants():
            for name, value in zip(each.names, each.values, strict=True):
                if name in self.asked or (not self.asked and name not in self.tests):
                    every = [_failing(session, name, value, new) for new in mutants(value)]
                    self.tests[name] = next(filter(None, every), "")
                    print(f"{name}: {every}", file=sys.stderr, flush=True)
        return True


def _failing(session: pytest.Session, name: str, old: Any, new: Any) -> str:
    """Return the first test that fails with another value, as file::name; empty: none does."""
    reads, writes = os.pipe()
    if child := os.fork():
        os.close(writes)
        with open(reads, encoding="utf-8") as pipe:
            failed = pipe.read()
        os.waitpid(child, 0)
        return failed.removeprefix("tests/").partition("[")[0]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for module in list(sys.modules.values()):  # also those that imported it by name
        if vars(module).get(name) == old:
            setattr(module, name, new)
    for item in session.items:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if session.testsfailed:
            os.write(writes, item.nodeid.encode())
            break
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/constants.md.")
    parser.add_argument(
        "--find", nargs="*", metavar="NAME", help="find the test that fails when it is changed"
    )
    asked, tests = parser.parse_args().find, known_tests()
    if asked is not None:
        files = [str(ROOT / "tests" / file) for file in TESTS]
        pytest.main(["-q", "-s", "-p", "no:cacheprovider", *files], plugins=[Finder(frozenset(asked), tests)])
    PAGE.write_text(page(tests), encoding="utf-8")


if __name__ == "__main__":
    main()
