"""How far is the step that ``auto`` predicts of a plan, after dense steps alone, from the one that is measured?

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 lab/benchmarks/predicted_steps.py
        [--link 500mbit] [--width 512] [--layers 4] [--rounds 20] [--window 5] [--json]

A job sends with every plan of ``auto`` in turn, a window each, again and again, and in each round with dense gradients
first. From that dense window ``auto``'s own rules predict the steps of the round's other windows: once with the coding
times that the job measured when it started, and once with those of another machine, which codecs state. Of each plan
the quickest window counts, as other work on a machine only slows one. Ranks train layers of ``--width`` inputs and
outputs, in buckets of 1 MB, over the emulated ``--link`` of the agent.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac.policies import AutoPolicy, Plan
from gravac.policies.auto.beliefs import believe, learn
from gravac.policies.auto.settings import AutoState
from gravac.policies.auto.table import PlanTable, table_of
from gravac.policies.base import DENSE, PolicyState, Verdict
from gravac.policies.windows import first_decision, levels_under, measure, next_decision
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.wording import plan_in_words


@dataclass
class Seen:
    """What rank 0 saw of a job."""

    spec: JobSpec | None = None
    windows: list[tuple[Plan, Decision, WindowReport]] = field(default_factory=list)


class Tour(AutoPolicy):
    """Sends with each of ``auto``'s plans for a window, in turn."""

    name: ClassVar[str] = "tour"
    seen: Seen

    def fitted(self, spec: JobSpec) -> Self:
        """Return the policy of a job, with the plans that ``auto`` has there."""
        self.seen.spec = spec
        return super().fitted(spec)

    def start(self, epoch: int = 0) -> Verdict:
        """Return dense steps."""
        decision = first_decision(epoch, "warmup", 1.0, "Every plan in turn, dense first.")
        return Verdict(decision, AutoState(decision=decision))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Note the window and take the next plan."""
        before = state.decision
        plan = Plan(before.codec, before.cf_candidate) if before.cf_candidate > 1.0 else DENSE
        found = measure(report, before, 1)
        if levels_under(report, before) and found:
            self.seen.windows.append((plan, before, report))
            plans = self._plans
            plan = plans[(plans.index(plan) + 1) % len(plans)]
        decision = next_decision(
            before,
            report,
            "fixed",
            "Next in turn.",
            phase="warmup" if plan == DENSE else "explore",
            minimum=plan.cf,
            candidate=plan.cf,
            codec=plan.codec,
        )
        return Verdict(decision, AutoState(decision=decision))


@dataclass(frozen=True)
class Row:
    """Seconds of a plan's step, and what they were predicted to be."""

    measured: float
    before: float
    after: float

    def error(self, predicted: float) -> float:
        """Return the relative error."""
        return predicted / self.measured - 1.0


def rows_of(seen: Seen) -> dict[Plan, Row]:
    """Return what was predicted and measured of each plan but dense."""
    assert seen.spec is not None
    quickest: dict[Plan, tuple[float, Decision, WindowReport]] = {}
    for plan, decision, report in seen.windows:
        seconds = measure(report, decision, 1)[plan.cf].step_seconds
        if plan not in quickest or seconds < quickest[plan][0]:
            quickest[plan] = seconds, decision, report
    _, decision, report = quickest.pop(DENSE)
    stated = tuple(cost.model_copy(update={"coding_seconds": None}) for cost in seen.spec.plans)
    before, after = (
        predictions(table_of((), 0.02, seen.spec.model_copy(update={"plans": plans})), decision, report)
        for plans in (stated, seen.spec.plans)
    )
    return {plan: Row(seconds, before[plan], after[plan]) for plan, (seconds, *_) in quickest.items()}


def predictions(table: PlanTable, decision: Decision, report: WindowReport) -> dict[Plan, float]:
    """Return the step of each plan that ``auto`` predicts after one dense window of a job."""
    lesson = learn(table, AutoState(decision=decision).beliefs, report, decision, 0.0)
    return {row.plan: row.seconds for row in believe(table, lesson.beliefs, DENSE, report.window, 0)}


def train(link: str, width: int, layers: int, rounds: int, window: int) -> Seen:
    """Train until every plan was in force ``rounds`` times. Returns what rank 0 saw."""
    torch.manual_seed(dist.get_rank())
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
    module = DistributedDataParallel(nn.Sequential(*parts), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    policy = Tour()
    policy.seen = Seen()
    with (
        tempfile.TemporaryDirectory() as scratch,
        gravac.Agent(
            module,
            optimizer,
            policy=policy,
            link=link,
            window=window,
            controller=None,
            data_dir=Path(scratch),
        ),
    ):
        assert policy.seen.spec is not None
        plans = len(policy.seen.spec.plans)
        for _ in range(window * (plans * rounds + 1)):
            inputs = torch.randn(8, width)
            (module(inputs) - inputs.sin()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return policy.seen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--link", default="500mbit", help="the emulated link of each rank")
    parser.add_argument("--width", type=int, default=512, help="of a layer")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20, help="windows of each plan")
    parser.add_argument("--window", type=int, default=5, help="steps of a window")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    seen = train(given.link, given.width, given.layers, given.rounds, given.window)
    if dist.get_rank() == 0:
        show(seen, given.json)
    dist.destroy_process_group()


def show(seen: Seen, as_json: bool) -> None:
    """Print each plan, then the median and the worst error."""
    rows = rows_of(seen)
    if as_json:
        print(json.dumps([plan._asdict() | asdict(row) for plan, row in rows.items()]))
        return
    print(f"{'plan':<34}{'measured':>10}{'before':>10}{'error':>8}{'after':>10}{'error':>8}")
    for plan, row in rows.items():
        words = plan_in_words(plan.codec or "topk+bf16", plan.cf)
        figures = "".join(f"{1e3 * each:>8.1f}ms{row.error(each):>+8.1%}" for each in (row.before, row.after))
        print(f"{words:<34}{1e3 * row.measured:>8.1f}ms{figures}")
    for name in ("before", "after"):
        sizes = [abs(row.error(getattr(row, name))) for row in rows.values()]
        print(
            f"{name}: {len(sizes)} plans, error {median(sizes):.1%} in the median, {max(sizes):.1%} at worst"
        )


if __name__ == "__main__":
    main()
