"""Tests the whole OpenAPI document against a real controller with schemathesis, with and without tokens.

``python -m tools.fuzz.api --cases 5000`` runs long; the test suite runs a few hundred cases. Every answer must have a
documented status, content type and body, and no undocumented 5xx. What the document forbids must be refused, and every
request without the token too. Event streams have no end and are left out.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gravac.protocol import JobAnswer, WindowAnswer
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller

AGENT = "an-agents-token-0123456789abcdef"
OPERATOR = "an-operators-token-0123456789abc"
JOB = "my-job"  # as in the document's examples
LIMITS = {"max_reads_per_second": 1e6, "max_changes_per_second": 1e6}
TOKENS = {
    "GRAVAC_TOKEN": AGENT,
    "GRAVAC_CONTROLLER_CONTROL_TOKEN": OPERATOR,
    "GRAVAC_CONTROLLER_LOOK_NEEDS_TOKEN": "true",
}
CHECKS = "all"
NOT_CHECKED = "positive_data_acceptance"
"""Data of the right types may still contradict itself (a last step before the first), and is refused with 422."""


@dataclass(frozen=True)
class Found:
    """Result of a run of schemathesis."""

    cases: int
    passed: bool
    output: str


def fuzz(folder: Path, *, tokens: bool, examples: int, phases: str, seed: int) -> Found:
    """Run schemathesis against a controller with a job: ``examples`` cases per route and phase."""
    controller = Controller(folder / "runs", env=TOKENS if tokens else {}, limits=LIMITS | {"max_jobs": 50})
    try:
        feed(controller)
        command = [
            str(Path(sys.executable).parent / "st"), "run", f"{controller.url}/openapi.json",
            "--exclude-path-regex", "/events$", "--phases", phases, "--max-examples", str(examples),
            "--seed", str(seed), "--checks", CHECKS, "--exclude-checks", NOT_CHECKED,
            "--continue-on-failure", "--request-timeout", "60", "--suppress-health-check", "all",
        ]  # fmt: skip
        if tokens:
            command += ["--header", f"Authorization: Bearer {OPERATOR}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        alive = controller.ask("GET", "/healthz").status == 200
        log = controller.log.read_text()
    finally:
        controller.stop()
    cases = re.search(r"^\s*(\d+) generated", output, re.MULTILINE)
    sound = alive and "Traceback" not in log
    return Found(
        int(cases[1]) if cases else 0, done.returncode == 0 and sound, output + ("" if sound else log)
    )


def feed(controller: Controller) -> None:
    """Register a job and report a few windows, so that there is something to read."""
    headers = {"Authorization": f"Bearer {AGENT}"}
    answer = controller.ask("POST", "/v1/jobs", spec(JOB), headers)
    decision, trainer = JobAnswer.model_validate_json(answer.body).decision, Trainer(JOB)
    for _ in range(5):
        answer = controller.ask("POST", f"/v1/jobs/{JOB}/windows", trainer.report(decision), headers)
        decision = WindowAnswer.model_validate_json(answer.body).decision


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000, help="cases in all, at least")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    cases, seed, failed = 0, given.seed, False
    while cases < given.cases:
        for tokens in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found = fuzz(
                    Path(folder), tokens=tokens, examples=60, phases="examples,coverage,fuzzing", seed=seed
                )
            cases += found.cases
            failed = failed or not found.passed or not found.cases
            print(
                f"tokens {'on' if tokens else 'off'}, seed {seed}: {found.cases} cases, {found.passed=}",
                flush=True,
            )
            if not found.passed:
                print(found.output)
        if failed:
            return 1
        seed += 1
    print(f"{cases} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
