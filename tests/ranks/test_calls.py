"""How many Python calls a plain step makes, and who keeps what belongs to a bucket."""

import ast
from collections.abc import Iterator

import pytest

from tools.calls import ROOT, plain_step

ROOMS = (
    "agent/gravac_agent/exchange",
    "agent/gravac_agent/streams",
    "gravac/aggregators",
    "gravac/collectives",
)
MEMORIES = "gravac/memories"
CHANNELS = {"channel.py", "host_level.py"}
"""A whole bucket is divided among the ranks of a host before its pieces have a channel."""
OF_A_BUCKET = {"bucket", "tensors", "workload", "shapes", "channel"}


def test_a_plain_step_makes_few_calls_in_few_files() -> None:
    """Of two ranks with one bucket. When the exchange had no channels it was 483 calls, 52 files, 265 returns, 365."""
    counted = plain_step("topk+bf16")
    assert len(counted.calls) <= 240, counted.calls
    assert counted.files <= 30, sorted({call.file for call in counted.calls})
    assert counted.returns <= 120
    assert counted.hook_to_future <= 180


def keyed_by_bucket(source: str) -> Iterator[int]:
    """Yield the lines that look something up, in an attribute of an object, by what identifies a bucket."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        named = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            held, key = None, None
            if isinstance(node, ast.Subscript):
                held, key = node.value, node.slice
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                held, key = node.comparators[0], node.left
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"get", "pop", "setdefault"}
                and node.args
            ):
                held, key = node.func.value, node.args[0]
            if isinstance(held, ast.Attribute) and key is not None and identifies(key, named):
                yield node.lineno


def identifies(key: ast.expr, named: dict[str, ast.expr]) -> bool:
    """Return whether a key is, or is made of, a bucket, its number, names or shapes."""
    if isinstance(key, ast.Tuple):
        return any(identifies(one, named) for one in key.elts)
    if isinstance(key, ast.Name):
        made = named.get(key.id)
        return key.id in OF_A_BUCKET or (
            made is not None and not isinstance(made, ast.Name) and identifies(made, {})
        )
    if isinstance(key, ast.Call):  # id(bucket)
        return any(identifies(one, named) for one in key.args)
    return isinstance(key, ast.Attribute) and key.attr in {"number", "names", "shapes", "bucket"}


@pytest.mark.parametrize("room", [*ROOMS, MEMORIES])
def test_only_the_channel_keeps_what_belongs_to_a_bucket(room: str) -> None:
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        if path.name not in CHANNELS and (lines := list(keyed_by_bucket(path.read_text()))):
            found[path.name] = lines
    assert not found


@pytest.mark.parametrize(
    "line", ["self._slots[bucket.names]", "self._made.get((bucket.number, cf))", "workload in self._chosen"]
)
def test_a_dictionary_by_bucket_is_found(line: str) -> None:
    assert list(keyed_by_bucket(f"def of(self):\n    {line}\n"))
    assert not list(keyed_by_bucket("def of(self):\n    self._factors[name]\n"))
