"""Reads a Dockerfile, as far as ours go: instructions, continued lines, stages."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, its flags (``--from=build``) and the rest of it."""

    name: str
    flags: tuple[str, ...]
    rest: str

    @property
    def words(self) -> list[str]:
        """The arguments: of the exec form the list, else what spaces separate."""
        found: list[str] = json.loads(self.rest) if self.rest.startswith("[") else self.rest.split()
        return found


def read(path: Path) -> list[list[Instruction]]:
    """The stages of a Dockerfile, each from its FROM on."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    stages: list[list[Instruction]] = []
    defaults: dict[str, str] = {}  # of arguments before the first stage
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        words = rest.split()
        flags = (
            tuple(word for word in words if word.startswith("--")) if name in ("COPY", "HEALTHCHECK") else ()
        )
        for flag in flags:
            rest = rest.replace(flag, "", 1)
        if name == "ARG" and not stages:
            argument, _, value = rest.partition("=")
            defaults[argument] = value
            continue
        if name == "FROM":
            for argument, value in defaults.items():
                rest = rest.replace(f"${{{argument}}}", value)
            stages.append([])
        stages[-1].append(Instruction(name, flags, rest.strip()))
    return stages


def only(stage: list[Instruction], name: str) -> Instruction:
    """The one instruction of that name."""
    (found,) = (one for one in stage if one.name == name)
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    """What ENV sets."""
    pairs = [word.partition("=") for one in stage if one.name == "ENV" for word in one.words]
    return {name: value for name, _, value in pairs}
