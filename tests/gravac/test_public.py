"""``import gravac`` is the whole interface: quick, typed, and what ``__all__`` lists."""

import ast
import inspect
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import gravac
from gravac_agent.settings import AgentSettings
from tools.pages.settings import meanings

PUBLIC = """
    Agent AgentSettings AgentState Link LoadPlanner hook integrations observe optim
    AgentError AgreementError ClosedError PeerError SetupError
    Client ControllerError NoController NotAController Refused
    TraceError check read_trace redecide replay testing predict
    Aggregator Bucket Collective Compressor ConfiguredPolicy Key Memory Payload
    Policy PolicySettings PolicyState Traits Verdict
    Decision WindowReport protocol
    aggregators collectives compressors memories policies
    __version__
"""
HEAVY = (
    "torch",
    "numpy",
    "numba",
    "fastapi",
    "pydantic",
    "uvicorn",
    "http",
    "gravac_agent",
    "gravac_controller",
)
MOST_SECONDS = 0.15


def test_what_is_public() -> None:
    """A name that comes or goes changes what others build on: say so in the change log."""
    assert sorted(gravac.__all__) == sorted(PUBLIC.split())
    assert len(set(gravac.__all__)) == len(gravac.__all__)
    assert set(gravac.__all__) <= set(dir(gravac))


@pytest.mark.parametrize("name", [name for name in PUBLIC.split() if name != "__version__"])
def test_each_name_is_documented_and_typed(name: str) -> None:
    thing = getattr(gravac, name)
    assert inspect.getdoc(thing)
    assert inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing)
    if inspect.isfunction(thing):
        assert set(get_type_hints(thing)) >= {"return", *inspect.signature(thing).parameters}
    if inspect.ismodule(thing):
        assert thing.__name__ == f"{gravac._HOMES.get(name, 'gravac')}.{name}"


def test_type_checkers_see_the_same_names() -> None:
    """The stub for type checkers, the table of homes and ``__all__`` cannot drift."""
    stub = ast.parse(Path(gravac.__file__).with_suffix(".pyi").read_text())
    imported = {
        (node.module, name.name)
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name == name.asname
    }
    assert imported == {
        *((home, name) for name, home in gravac._HOMES.items()),
        *(("gravac", name) for name in gravac._MODULES),
        ("gravac.version", "__version__"),
    }
    assert {name for _, name in imported} == set(gravac.__all__)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'gravac' has no attribute 'Agnet'"):
        gravac.Agnet  # noqa: B018


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.smoke
def test_the_import_is_light() -> None:
    loaded = python("import gravac, sys, json; print(json.dumps(sorted(sys.modules)))")
    assert set(json.loads(loaded)).isdisjoint(HEAVY)


@pytest.mark.alone
def test_the_import_is_quick() -> None:
    code = "import time; began = time.perf_counter(); import gravac; print(time.perf_counter() - began)"
    assert min(float(python(code)) for _ in range(5)) < MOST_SECONDS


@pytest.mark.distributed
def test_the_agent_needs_no_controller_code() -> None:
    loaded = python("import gravac, sys; gravac.Agent; gravac.replay; print(*sys.modules)").split()
    assert "torch" in loaded
    assert {"fastapi", "uvicorn", "gravac_controller"}.isdisjoint(loaded)


@pytest.mark.distributed
def test_the_client_needs_no_torch() -> None:
    assert "torch" not in python("import gravac, sys; gravac.Client; print(*sys.modules)").split()


PARAMETERS = inspect.signature(gravac.Agent).parameters
NOT_SETTINGS = ("module", "optimizer", "scaler", "replicate")
ALSO = {"policy": gravac.Policy, "link": gravac.Link, "data_dir": str, "sink": object, "levels": int}
"""What keywords take besides the setting's own type."""


def test_agent_has_a_keyword_for_each_setting() -> None:
    assert [name for name in PARAMETERS if name not in NOT_SETTINGS] == list(AgentSettings.model_fields)
    hints = get_type_hints(gravac.Agent.__init__)
    for name, field in AgentSettings.model_fields.items():
        kind = field.annotation
        own = set(get_args(kind)) if isinstance(kind, types.UnionType) else {kind}
        more = {ALSO[name]} if name in ALSO else set()
        default = PARAMETERS[name].default
        if default is not None:
            more.add(type(default))
        assert set(get_args(hints[name])) == own | more | {type(None)}, name


def test_agents_docstring_has_each_keyword_and_its_default() -> None:
    described = meanings()
    assert list(described) == ["module", "optimizer", *AgentSettings.model_fields, "scaler", "replicate"]
    for name, field in AgentSettings.model_fields.items():
        stated = re.search(r"Default: (.*?)\.?$", described[name])
        assert stated, name
        default = field.default
        expected = f"{default:g}" if isinstance(default, float) else str(default)
        if default is not None:
            assert stated[1].strip("`") == expected, name


def test_the_settings_page_has_each_keyword() -> None:
    page = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    for name in AgentSettings.model_fields:
        assert f"| `GRAVAC_{name.upper()}` |" in page


SCRIPT = """
import gravac
import torch
from torch.nn.parallel import DistributedDataParallel


def train(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> float:
    agent = gravac.Agent(
        module,
        optimizer,
        KEYWORDS
        scaler=scaler,
    )
    agent.start()
    agent.log(loss=1.0, samples=32)
    state = agent.state
    agent.close()
    with gravac.Agent(module, optimizer, controller=None, policy=gravac.policies.build(RULE)) as other:
        other.wait_ready(5)
    with gravac.read_trace("run.jsonl") as lines:
        found = gravac.replay(lines)
    return 1.0 if state is None else state.cf + len(found.differing)


RULE = gravac.protocol.PolicySpec(name="dense", settings={})
"""
VALUES = {
    "enabled": "True",
    "compressor": "'topk'",
    "memory": "'residual'",
    "collective": "'gather'",
    "policy": "'static:cf=100'",
    "window": "20",
    "controller": "'http://127.0.0.1:8756'",
    "job": "'mine'",
    "data_dir": "'runs'",
    "page_port": "0",
    "link": "gravac.Link(bits_per_second=1e8)",
    "levels": "4",
    "nonfinite": "'propagate'",
    "agreement_seconds": "60",
    "adapt_optimizer": "True",
    "sink": "['tensorboard:dir=runs/x']",
    "steering": "'off'",
    "token": "None",
}
CONFIGURATION = """
[mypy]
strict = true
[mypy-torch.*]
follow_imports = skip
"""


@pytest.mark.long
def test_mypy_checks_a_users_script(tmp_path: Path) -> None:
    """``py.typed``: the types of every keyword reach the user, and so does a misspelled one."""
    assert set(VALUES) == set(AgentSettings.model_fields)
    good = SCRIPT.replace("KEYWORDS", "\n        ".join(f"{name}={value}," for name, value in VALUES.items()))
    wrong = (
        good.replace("window=20", "window='20'")
        .replace("levels=4", "lewels=4")
        .replace("gravac.replay", "gravac.reply")
    )
    (tmp_path / "good.py").write_text(good)
    (tmp_path / "wrong.py").write_text(wrong)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "good.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if line.startswith("good.py")] == [], done.stdout
    assert len(errors) == 3, done.stdout + done.stderr
    assert 'Argument "window" to "Agent" has incompatible type "str"' in done.stdout
    assert 'Unexpected keyword argument "lewels" for "Agent"' in done.stdout
    assert 'Module has no attribute "reply"' in done.stdout
