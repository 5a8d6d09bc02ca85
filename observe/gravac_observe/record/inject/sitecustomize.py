"""What ``gravac observe`` puts first on the PYTHONPATH of its command: Python imports it as each interpreter starts.

It waits for torch's optimizers to be imported, then loads the recorder, and runs the environment's own sitecustomize.
"""

from __future__ import annotations  # an older Python than gravac's may import this

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
AWAITED = "torch.optim.optimizer"


class _Awaiting:
    """Finds no module by itself. Once the awaited one has been executed, it loads the recorder."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            loader: Any = found.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _record()

            loader.exec_module = exec_module
        return found


def _record() -> None:
    """Load the recorder by its path. Whatever goes wrong, the program goes on."""
    try:
        folder = HERE.parent
        spec = importlib.util.spec_from_file_location(
            "gravac_recorder", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.observe_as_asked()
    except Exception as error:
        print(f"gravac observe: cannot record: {error!r:.300}", file=sys.stderr)  # noqa: T201


def _run_the_other() -> None:
    """Run the sitecustomize that this one stands before, as Python would have."""
    others = [each for each in sys.path if Path(each or ".").resolve() != HERE]
    found = PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)


sys.meta_path.insert(0, _Awaiting())
_run_the_other()
