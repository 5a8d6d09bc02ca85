"""docs/settings.md, made from the code: python -m tools.pages.settings > docs/settings.md."""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gravac.policies import POLICIES
from gravac_agent.agent import Agent
from gravac_agent.settings import AgentSettings
from gravac_controller.settings import ControllerSettings

HEAD = """# Settings

```python
Agent(model, optimizer, window=100)  # the same as GRAVAC_WINDOW=100
```

`tools/pages/settings.py` makes this page from the code, and a test fails when it is out of date.

## The agent

Each setting is a keyword of `Agent(...)` and a variable. The keyword wins over the variable, and the variable over the
default. All ranks must have the same values. A `GRAVAC_` variable that is not in this table is an error at the start.
One more is of the kernels: `GRAVAC_KERNELS=reference` compresses with plain torch, several times slower and with the
same results, and `cpu` refuses to. By default they are compiled where numba works (the extra `cpu` installs it).

"""
CONTROLLER = """
## The controller

Some settings are options of `gravac serve` as well (`gravac serve --help`). The option wins over the variable, and the
variable over the default. A controller that an agent starts gets its folder, job, port and token from the agent.

"""
POLICY_HEAD = """
## The policies

Write settings after the name of the policy, as `name:setting=value,setting=value`, and lists with slashes:

```sh
GRAVAC_POLICY=gravac:epsilon=0.4,ladder=10/40/160 torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
```

"""


def page() -> str:
    """The whole page."""
    text = HEAD + _table(AgentSettings, "Variable", lambda name, _: f"GRAVAC_{name.upper()}", meanings())
    text += CONTROLLER + _table(ControllerSettings, "Variable", _controller_variable)
    text += POLICY_HEAD
    for policy in POLICIES.values():
        model = policy.Settings
        about = " ".join((model.__doc__ or "").split())
        text += f"### {policy.name}\n\n{about}\n\n"
        if model.model_fields:
            text += _table(model, "Setting", lambda name, _: name) + "\n"
    return text.rstrip("\n") + "\n"


def meanings() -> dict[str, str]:
    """What ``Agent`` says of each argument, in Markdown and with its default."""
    arguments = (inspect.getdoc(Agent) or "").split("Args:")[1].split("Raises:")[0]
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", arguments, re.MULTILINE | re.DOTALL)
    return {
        name: re.sub(r":\w+:`[~.\w]*?(\w+)`", r"`\1`", " ".join(text.split()).replace("``", "`"))
        for name, text in found
    }


def _table(
    model: type[BaseModel],
    column: str,
    name_of: Callable[[str, FieldInfo], str],
    meanings_of: Mapping[str, str] = {},
) -> str:
    lines = [f"| {column} | Default | Meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        about = (
            meanings_of[name].rpartition(" Default: ")[0]
            if meanings_of
            else " ".join((field.description or "").split())
        )
        about = about.replace("|", "\\|")
        lines.append(f"| `{name_of(name, field)}` | {_default(field)} | {about} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "must be given"
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return f"`{'/'.join(f'{item:g}' for item in value)}`"
    if isinstance(value, Path | str):
        return f"`{value}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _controller_variable(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"GRAVAC_CONTROLLER_{name.upper()}"


if __name__ == "__main__":
    print(page(), end="")
