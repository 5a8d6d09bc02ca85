"""Variants of ``StreamExecutor``, each without one of the dependencies that it declares."""

import ast
import copy
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

from gravac_agent.streams import executor as stream_executor
from gravac_agent.streams.executor import StreamExecutor

DEPENDENCIES = ("wait_stream", "record_stream", "wait_work", "wait_event", "synchronize")
"""Calls that order work, or the host. Each is a statement of its own."""
_SOURCE = Path(stream_executor.__file__)


@cache
def mutants() -> dict[str, type[StreamExecutor]]:
    """Return all variants by what they do wrong.

    One for each call of ``DEPENDENCIES``, without it; one for each ``run``, on the trainer's stream instead; and one
    for each loop that waits, without it.
    """
    tree = ast.parse(_SOURCE.read_text())
    places = [node for node in ast.walk(tree) if _dependency(node)]
    found: dict[str, type[StreamExecutor]] = {}
    for number, place in enumerate(places):
        name = f"{_function_of(tree, place)}: {ast.unparse(place).splitlines()[0]}"
        found[name if name not in found else f"{name} ({number})"] = _without(tree, number)
    return found


def _dependency(node: ast.AST) -> bool:
    if isinstance(node, ast.While):
        return "query" in ast.unparse(node.test)
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = node.value.func
    return isinstance(called, ast.Attribute) and (
        called.attr in DEPENDENCIES
        or (
            called.attr == "run"
            and "device" in ast.unparse(called)
            and ast.unparse(node.value.args[0]) != "current"
        )
    )


def _function_of(tree: ast.Module, place: ast.AST) -> str:
    inside = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(one is place for one in ast.walk(node))
    ]
    return inside[-1]


def _without(tree: ast.Module, number: int) -> type[StreamExecutor]:
    changed = copy.deepcopy(tree)
    place: Any = [node for node in ast.walk(changed) if _dependency(node)][number]

    class Change(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            if node is not place:
                return super().generic_visit(node)
            if isinstance(node, ast.Expr) and place.value.func.attr == "run":
                place.value.args[0] = ast.parse("self.device.main", mode="eval").body
                return place
            return ast.Pass()

    module = types.ModuleType(f"{stream_executor.__name__}_{number}")
    sys.modules[module.__name__] = module  # dataclasses look it up
    source = ast.fix_missing_locations(Change().visit(changed))
    exec(compile(source, str(_SOURCE), "exec"), module.__dict__)
    mutant: type[StreamExecutor] = module.StreamExecutor
    return mutant
