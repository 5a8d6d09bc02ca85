"""Start a new member: `make new-codec NAME=x KIND=quantizer`, `make new-memory NAME=x`, `make new-policy NAME=x`.

Writes a skeleton that works, registers it, writes the pages again, and runs the tests that are about it.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS
from gravac.memories import MEMORIES
from gravac.policies import POLICIES

ROOT = Path(__file__).parent.parent

SPARSIFIER = '''"""{Name}: one sentence that says what it sends."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Key, kept_count
from gravac.compressors.sparse.selector import PLAIN, Indexed
from gravac.offers import Offer


class {Name}(Indexed):
    """Send the first k = floor(n / CF) elements, whatever their size.

    Nothing is proven of its error: see ``bound``.
    """

    name = "{name}"
    source = "skeleton of `make new-codec`"
    traits = replace(PLAIN, nested=False)
    # Policy auto uses it only where a user lists it. To let auto choose it, state its strengths, such as (10.0, 100.0),
    # and its efficiency under sgd and adam (gravac/offers.py).
    offer = Offer()

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        return torch.arange(kept_count(x.numel(), cf), device=x.device)
'''

QUANTIZER = '''"""{Name}: one sentence that says what it sends."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer, spread
from gravac.kernels import blocked, relative, row_scales
from gravac.offers import Offer

BLOCK, STEPS = 64, 127


class {Name}(Quantizer):
    """Round every element to the nearest of 127 steps of the largest magnitude of its block, up or down.

    One byte for each element, and four for each block. Nothing is proven of its error: see ``bound``.
    """

    name = "{name}"
    source = "skeleton of `make new-codec`"
    traits = replace(ROUNDED, unbiased=False)
    # Policy auto uses it only where a user lists it. To let auto choose it, state its plans, here {{"": 3.8}}, and its
    # efficiency under sgd and adam (gravac/offers.py).
    offer = Offer()

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return TensorSpec(torch.float32, -(-numel // BLOCK)), TensorSpec(torch.int8, numel)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        rows = blocked(x, BLOCK)
        scales = row_scales(rows, "linf")
        codes = (relative(rows, scales) * STEPS).round().flatten()[: x.numel()]
        return Payload((scales, codes.to(torch.int8)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        scales, codes = payload.parts
        return spread(scales, BLOCK, payload.numel) * (codes / STEPS)
'''

MEMORY = '''"""{Name}: one sentence that says what it keeps."""

from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import Memory
from gravac.memories.bucketed import FlatMemory

LEAST = 1e-30


class {Name}Part(FlatMemory):
    """The part of one bucket. Override what differs from textbook error feedback."""

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        residual = super().update(compressor, payload)
        if residual is not None:
            residual.masked_fill_(residual.abs() < LEAST, 0.0)
        return residual


class {Name}Memory(Memory):
    """Error feedback, with what is too small to matter set to zero."""

    name = "{name}"
    source = "skeleton of `make new-memory`"
    exact = True
    part = {Name}Part
'''

POLICY = '''"""{Name}: one sentence that says how it decides."""

from typing import ClassVar

from gravac.policies.base import ConfiguredPolicy, PolicySettings, PolicyState, Verdict, narrow
from gravac.policies.windows import next_decision
from gravac.protocol import Decision, WindowReport


class {Name}State(PolicyState):
    """What it remembers from window to window, beside the decision in force."""


class {Name}Settings(PolicySettings):
    """What can be set; each field has a description, a sentence with its unit."""


class {Name}Policy(ConfiguredPolicy[{Name}Settings]):
    """Hold CF 1."""

    name: ClassVar[str] = "{name}"
    source: ClassVar[str] = "skeleton of `make new-policy`"
    State: ClassVar[type[PolicyState]] = {Name}State
    Settings: ClassVar[type[PolicySettings]] = {Name}Settings

    def ladder(self) -> tuple[float, ...]:
        return (1.0,)

    def start(self, epoch: int = 0) -> Verdict:
        """Return CF 1."""
        decision = Decision(
            window=-1,
            epoch=epoch,
            phase="hold",
            cf_minimum=1.0,
            cf_candidate=1.0,
            epsilon=0.0,
            rule="start",
            reason="The {name} policy holds CF 1.",
        )
        return Verdict(decision, {Name}State(decision=decision))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Return CF 1 again."""
        state = narrow(state, {Name}State)
        decision = next_decision(state.decision, report, "fixed", "The {name} policy holds CF 1.")
        return Verdict(decision, {Name}State(decision=decision))
'''


class Kind(NamedTuple):
    """What one kind of member needs. ``class_name`` and ``module``: of the new one, ``{Name}`` and ``{module}``."""

    skeleton: str
    module: str
    class_name: str
    registry: Path
    taken: frozenset[str]
    tests: str
    remains: str


KINDS = {
    kind: Kind(
        skeleton=skeleton,
        module=f"gravac.compressors.{room}.{{module}}",
        class_name="{Name}",
        registry=ROOT / "gravac/compressors/__init__.py",
        taken=frozenset({*COMPRESSORS, *AGGREGATORS}),
        tests="tests/gravac",
        remains="""
  1. Write the codec: {file}. gravac/compressors/base.py says what each method promises. A low-rank codec
     goes into its own folder and has another base class.
  2. Say what it is: the docstrings, which become the catalogue, source, traits, bound; `examples` if it has settings;
     its offer, so that policy auto can choose it.
  3. python -m tools.new --check {kind} {name}     the pages again, and these tests
  4. make lint; make test-all ARGS="tests/ranks/test_codecs_live.py" trains with it on real processes
""",
    )
    for kind, skeleton, room in (("quantizer", QUANTIZER, "quantize"), ("sparsifier", SPARSIFIER, "sparse"))
} | {
    "memory": Kind(
        skeleton=MEMORY,
        module="gravac.memories.{module}",
        class_name="{Name}Memory",
        registry=ROOT / "gravac/memories/__init__.py",
        taken=frozenset(MEMORIES),
        tests="tests/gravac",
        remains="""
  1. Write the memory: {file}. gravac/memories/base.py says what each method promises.
  2. Say what it is: the docstrings, source, exact, transforms. If it has settings, describe each and give `examples`.
  3. python -m tools.new --check memory {name}     the pages again, and these tests
  4. make lint; GRAVAC_MEMORY={name} make demo     trains with it on real processes
""",
    ),
    "policy": Kind(
        skeleton=POLICY,
        module="gravac.policies.{module}",
        class_name="{Name}Policy",
        registry=ROOT / "gravac/policies/__init__.py",
        taken=frozenset(POLICIES),
        tests="tests/gravac/policies",
        remains="""
  1. Write the policy: {file}. gravac/policies/base.py says what each method promises; decide() is pure.
  2. Say what it is: the docstrings, source, ladder(). If it has settings, describe each and give `examples`.
  3. python -m tools.new --check policy {name}     the pages again, and these tests
  4. make lint; make test-all ARGS="tests/gravac/policies/test_steering.py" runs it under operators' orders
""",
    ),
}


def main() -> int:
    """Return the exit status of the tests."""
    parser = argparse.ArgumentParser(description="Start a new codec, memory or policy.")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("name", help="lower case: mycodec, my-codec")
    parser.add_argument(
        "--check", action="store_true", help="the member exists: only write the pages and run its tests"
    )
    given = parser.parse_args()
    kind, name = KINDS[given.kind], given.name
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        parser.error(f"name={name!r} must be letters and digits in lower case, with - between words")
    if given.check != (name in kind.taken):
        parser.error(
            f"{given.kind} {name!r} is not registered"
            if given.check
            else f"{name!r} is a {given.kind} already"
        )
    if not given.check:
        create(kind, name)
    write_pages()
    began = time.monotonic()
    status = subprocess.call([sys.executable, "-m", "pytest", "-q", kind.tests, "-k", name], cwd=ROOT)
    print(f"Tests of {name}: {'passed' if status == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s.")
    if not given.check:
        file = path_of(kind, name).relative_to(ROOT)
        print(f"\nWhat remains:{kind.remains.format(kind=given.kind, name=name, file=file)}")
    return status


def path_of(kind: Kind, name: str) -> Path:
    """Return the file of a member."""
    return ROOT / (kind.module.format(module=name.replace("-", "")).replace(".", "/") + ".py")


def create(kind: Kind, name: str) -> None:
    """Write the skeleton and register it."""
    words = "".join(word.capitalize() for word in name.split("-"))
    module = kind.module.format(module=name.replace("-", ""))
    class_name = kind.class_name.format(Name=words)
    file = path_of(kind, name)
    with file.open("x") as opened:
        opened.write(kind.skeleton.format(Name=words, name=name))
    text = kind.registry.read_text()
    text = text.replace("\nfrom gravac.", f"\nfrom {module} import {class_name}\nfrom gravac.", 1)
    text, count = re.subn(r"\n    \),\n    base=", f"\n        {class_name},\n    ),\n    base=", text)
    if count != 1:
        raise SystemExit(
            f"{kind.registry}: its list of members does not end as expected; name {class_name} there"
        )
    kind.registry.write_text(text)
    for command in (["check", "--quiet", "--fix"], ["format", "--quiet"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(kind.registry), str(file)], cwd=ROOT, check=True
        )
    print(f"Wrote {file.relative_to(ROOT)}, registered in {kind.registry.relative_to(ROOT)}.")


def write_pages() -> None:
    """Write the pages that list members again, in a process that sees the new one."""
    for page in ("catalogue", "settings"):
        done = subprocess.run(
            [sys.executable, "-m", f"tools.pages.{page}"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        (ROOT / f"docs/{page}.md").write_bytes(done.stdout)
    subprocess.run([sys.executable, "-m", "tools.pages.offers"], cwd=ROOT, check=True)
    print("Wrote docs/catalogue.md, docs/settings.md and gravac/offers.json.")


if __name__ == "__main__":
    sys.exit(main())
