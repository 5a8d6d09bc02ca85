"""Run a tier of tests: ``python -m tools.run_tests [fast|rest|all] [pytest arguments]``.

``make test`` runs the fast one, ``make test-all`` all; ``rest`` is what the fast one leaves out. Two runs of pytest:
first the tests that may share the machine, on three workers; then those marked ``alone``, which measure time, one by
one (none of them is fast). Both run, whatever the first one returns. The exit code is 0 when nothing failed, 5 when
neither run had a test, and otherwise that of the first run that failed. The last line says how many tests were skipped,
and which system packages would add them.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

# Three workers for two cores: tests of ranks and servers wait a fifth of their time.
TOGETHER = ["--phase=together", "--numprocesses=3", "--dist=worksteal"]
ALONE = ["--phase=alone"]
NO_TESTS = 5
COMPILE = "from gravac.kernels import backend; backend.active()"


def run(arguments: list[str], **environment: str) -> int:
    """Run pytest and return its exit code."""
    # One thread a process: several processes share two cores, and sums come out the same on any machine.
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *arguments]
    began = time.monotonic()
    code = subprocess.run(command, env=os.environ | environment, check=False).returncode
    print(f"== {arguments[0]}: exit code {code} after {time.monotonic() - began:.0f} s\n", flush=True)
    return code


def exit_code(*codes: int) -> int:
    """One exit code for several runs."""
    if set(codes) == {NO_TESTS}:
        return NO_TESTS
    return next((code for code in codes if code not in (0, NO_TESTS)), 0)


def summary(reasons: list[str]) -> str:
    """How many tests were skipped, by what their reasons name: a system package, as in ``(Debian: prometheus)``, or
    ``lab/``, with how many links, names and commands of documents lead into it.
    """
    lacking = [
        re.search(r"Debian: (?:apt-get install )?([\w ,.+-]+)|(lab/) is", reason) for reason in reasons
    ]
    counts = Counter("other reasons" if found is None else found[1] or found[2] for found in lacking)
    if unchecked := sum(int(number) for number in re.findall(r"lab/ is not here: (\d+)", "\n".join(reasons))):
        counts[f"lab/ with {unchecked} references to it"] = counts.pop("lab/")
    listed = ", ".join(
        f"{count} for {name}" if name == "other reasons" else f"{count} for lack of {name}"
        for name, count in counts.most_common()
    )
    return f"== skipped: {len(reasons)}{f' ({listed})' if listed else ''}"


def main(arguments: list[str]) -> int:
    tier, *arguments = arguments if arguments[:1] in (["fast"], ["rest"], ["all"]) else ("all", *arguments)
    # A fresh clone compiles the kernels: once, before any test would compute for as long as that takes.
    subprocess.run(
        [sys.executable, "-c", "" if os.environ.get("GRAVAC_KERNELS") == "reference" else COMPILE],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        skips = Path(folder) / "skips"
        skips.touch()
        # xdist's workers must agree on the order of parametrized tests, so on the order of sets.
        options = [f"--tier={tier}", f"--skips={skips}", "--durations=10", *arguments]
        codes = [run([*TOGETHER, *options], PYTHONHASHSEED="0")]
        if tier != "fast":
            codes.append(run([*ALONE, *options]))
        print(summary(skips.read_text().splitlines()), flush=True)
    code = exit_code(*codes)
    if (tier, code) == ("fast", NO_TESTS):
        print("== None of these tests is in the fast tier: `make test-all` runs them.")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
