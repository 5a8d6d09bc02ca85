"""What compression does to AdamW, and whether rules for late gradients mend it: simulated ranks on the lab's tasks.

``python -m lab.benchmarks.adam run`` learns with every combination of its options and appends a line for each run to
``--out``; runs that are there already are left out. ``… table`` prints every run of these lines, ``… summary`` what
each task loses, ``… scalars`` what single elements do; ``… page`` writes the latter two into the page beside this file.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, median
from typing import Any, get_args

import torch
from torch import Tensor, nn

from gravac.memories import Bucket
from gravac_lab.simulate import pool
from gravac_lab.simulate.late_adam import Age, Ages, LateAdamW, parse_late
from gravac_lab.simulate.run import chosen_plan, learn
from gravac_lab.tasks import Recipe
from gravac_lab.tournament.curves import LossCurve, curve_of, efficiency
from gravac_lab.tournament.rows import ALONE, DENSE, REPEAT

STOCK, MUON, POOLED = "adamw", "muon", "late:move=eager,age=pooled"
PLANS = "topk+twobit@5.1", "topk+twobit@16.6"
"""Those of most runs: 25 and 64 times fewer bytes."""
SCALARS, SCALAR_RATE = 1000, 1e-3
LONG_AFTER = 2048, 4096
"""Steps between which single elements are followed, long after the start."""
ROWS, PAGE = (Path(__file__).with_suffix(suffix) for suffix in (".jsonl.xz", ".md"))


@dataclass(frozen=True, slots=True)
class Job:
    """One training.

    Attributes:
        task: As ``gravac_lab.tasks.make`` reads it.
        plan: As ``gravac_lab.simulate.plans.parse`` reads it.
        rule: ``adamw``, or a rule as ``parse_late`` reads it.
        ranks: Simulated ranks.
        seed: Of weights and data.
        steps: Length.
        beta1: Of the optimizer.
        beta2: Of the optimizer.
    """

    task: str
    plan: str
    rule: str
    ranks: int
    seed: int
    steps: int
    beta1: float = 0.9
    beta2: float = 0.95

    @property
    def learned(self) -> str:
        """The task, with Muon where that is the rule: tasks have it as an optimizer."""
        own = f"{',' if ':' in self.task else ':'}optimizer={MUON}"
        return self.task + (own if self.rule == MUON else "")


def changed(job: Job, recipe: Recipe) -> Recipe:
    """Return the recipe with the optimizer of a job, at the learning rate of the task."""
    made = recipe.optimizer
    assert isinstance(made, partial)
    made = partial(made, betas=(job.beta1, job.beta2))
    if job.rule == MUON:
        return replace(recipe, optimizer=made)
    assert made.func is torch.optim.AdamW, f"{job.task} must have optimizer=adamw"
    if job.rule == STOCK:
        return replace(recipe, optimizer=made)
    return replace(recipe, optimizer=partial(LateAdamW, **made.keywords, rule=parse_late(job.rule)))


def run(job: Job) -> dict[str, Any]:
    """Return the row of a job: its fields, and what ``learn`` returns."""
    row = learn(job.learned, job.plan, job.ranks, job.seed, job.steps, 40, partial(changed, job))
    return row | asdict(job)


def job_of(row: dict[str, Any]) -> Job:
    """Return the job of a row."""
    return Job(**{name: row[name] for name in Job.__slots__})


def wanted(given: argparse.Namespace) -> list[Job]:
    """Return the jobs of options; dense is learned under the stock rule alone, as all rules are the same there."""
    found = []
    for beta, ranks, seed, task, plan, rule in product(
        given.betas, given.ranks, given.seeds, given.tasks, given.plans, given.rules
    ):
        first, second = beta.split("/")
        job = Job(task, plan, rule, ranks, seed, given.steps, float(first), float(second))
        chosen_plan(plan)
        if rule not in (STOCK, MUON):
            parse_late(rule)
        same = rule != MUON and plan.partition(":")[0] in (DENSE, ALONE)
        found.append(replace(job, rule=STOCK) if same else job)
    return list(dict.fromkeys(found))


Settings = tuple[str, float, float]
"""What a dense run can be tuned by: the task with its learning rate, β₁ and β₂."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that are compared with each other: those of one task, number of ranks and steps.

    Attributes:
        rows: Of all plans, settings and seeds.
        shorter: Of dense in fewer steps.
    """

    rows: list[dict[str, Any]]
    shorter: list[dict[str, Any]]

    def baseline(self, settings: Settings, seed: int) -> list[LossCurve]:
        """Return the curves of dense, repetitions included."""
        return [
            curve_of(row["curve"])
            for row in self.rows
            if is_dense(row) and settings_of(row) == settings and row["seed"] == seed
        ]

    def above(self, row: dict[str, Any], settings: Settings | None) -> float | None:
        """Return a run's final loss − that of dense with these settings and the same seed."""
        found = [] if settings is None else self.baseline(settings, row["seed"])
        return float(row["curve"][-1][1]) - median(curve.final for curve in found) if found else None

    def efficiency(self, row: dict[str, Any]) -> float | None:
        """Return η by the curves, as ``gravac bench tournament`` reads it, next to dense with the same settings."""
        baseline = self.baseline(settings_of(row), row["seed"])
        found = [efficiency(dense, curve_of(row["curve"])) for dense in baseline]
        known = [each for each in found if each is not None]
        return median(known) if known else None

    def best(self) -> Settings | None:
        """Return the settings with which dense ends lowest, in the mean of the seeds that all of them have; None where
        there is one only."""
        finals: dict[Settings, dict[int, float]] = {}
        for row in self.rows:
            if row["plan"] == DENSE:
                finals.setdefault(settings_of(row), {})[row["seed"]] = row["curve"][-1][1]
        if len(finals) < 2:
            return None
        common = set.intersection(*(set(each) for each in finals.values()))
        seeds = common or set.union(*(set(each) for each in finals.values()))
        means = {
            settings: mean(each[seed] for seed in seeds if seed in each) for settings, each in finals.items()
        }
        return min(means, key=means.__getitem__)

    def of_own_schedule(self, above: float | None, settings: Settings | None) -> float | None:
        """Return η by dense runs of fewer steps, whose learning rate falls to its end in these: the share of the steps
        in which dense loses as much. None where no such run loses as much, or there is none."""
        if above is None:
            return None
        steps = self.rows[0]["steps"]
        lost: dict[float, list[float]] = {}
        for row in self.shorter:
            if settings_of(row) == settings and (less := self.above(row, settings)) is not None:
                lost.setdefault(row["steps"] / steps, []).append(less)
        points = [(0.0, 1.0), *((median(lost[share]), share) for share in sorted(lost, reverse=True))]
        if above <= 0 and len(points) > 1:
            return 1.0
        for (less, longer), (more, shorter) in pairwise(points):
            if less < above <= more:
                return longer + (shorter - longer) * (above - less) / (more - less)
        return None

    def noise(self) -> float | None:
        """Return the largest difference of two final losses of dense that differ by rounding alone."""
        found = [
            max(finals) - min(finals)
            for row in self.rows
            if row["plan"] == DENSE
            and len(finals := [curve.final for curve in self.baseline(settings_of(row), row["seed"])]) > 1
        ]
        return max(found, default=None)


def is_dense(row: dict[str, Any]) -> bool:
    """Return whether a row is of dense, or of a repetition."""
    return row["plan"] == DENSE or str(row["plan"]).startswith(REPEAT)


def settings_of(row: dict[str, Any]) -> Settings:
    """Return the settings of a row."""
    return row["task"], row["beta1"], row["beta2"]


def without_rate(task: str) -> str:
    """Return a task without its learning rate."""
    return re.sub("[:,]rate=[^,]*$", "", task)


def groups(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int, bool, int], Group]:
    """Return the rows by task, ranks, whether it is Muon, and steps, where dense was run and another plan with it."""
    every: dict[tuple[str, int, bool, int], list[dict[str, Any]]] = {}
    for row in rows:
        key = without_rate(row["task"]), row["ranks"], row["rule"] == MUON, row["steps"]
        every.setdefault(key, []).append(row)
    found = {}
    for key, members in every.items():
        known = {(settings_of(row), row["seed"]) for row in members if row["plan"] == DENSE}
        members = [row for row in members if (settings_of(row), row["seed"]) in known]
        if all(map(is_dense, members)):
            continue
        shorter = [
            row
            for other, theirs in every.items()
            if other[:3] == key[:3] and other[3] < key[3]
            for row in theirs
            if row["plan"] == DENSE
        ]
        found[key] = Group(members, shorter)
    return found


def spread(values: Sequence[float | None], form: str) -> str:
    """Return the median of the known values, and the lowest and highest of several."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    middle = format(median(known), form)
    return middle if len(known) == 1 else f"{middle} ({min(known):{form}} to {max(known):{form}})"


def table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the Markdown tables of all groups."""
    lines: list[str] = []
    for (task, ranks, muon, steps), group in sorted(groups(rows).items()):
        noise, best = group.noise(), group.best()
        lines += [
            "",
            f"`{task}`, {group.rows[0]['elements'] / 1e6:.2f} M parameters, {ranks} ranks, {steps} steps"
            + (", Muon with AdamW" if muon else "")
            + ("" if noise is None else f"; repetitions of dense differ by {noise:.4f}"),
            "",
            "| fewer bytes | β | rule | seeds | loss | above dense with the same β | above dense with its best "
            "| η of the curve | η of own schedules |",
            "|---:|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        plans: dict[tuple[float, Settings, str, str], list[dict[str, Any]]] = {}
        for row in group.rows:
            if row["plan"] == DENSE or not is_dense(row):
                plans.setdefault((wire_cf(row), settings_of(row), row["plan"], row["rule"]), []).append(row)
        for (factor, settings, plan, rule), members in sorted(plans.items()):
            same = [group.above(row, settings) for row in members]
            least = [group.above(row, best) for row in members]
            own = [group.of_own_schedule(each, settings) for each in same]
            efficient = [group.efficiency(row) for row in members]
            if plan == DENSE:
                same, own, efficient = [], [], []
                if settings == best:
                    least = []
            name = f"{factor:.0f}x" if plan in PLANS else f"{factor:.0f}x `{plan}`"
            rate = settings[0].removeprefix(task).strip(",:")
            cells = [
                "dense" if plan == DENSE else name,
                f"{settings[1]:g}, {settings[2]:g}" + (rate and f", {rate}"),
                "" if plan in (ALONE, DENSE) else f"`{rule}`",
                str(len(members)),
                spread([row["curve"][-1][1] for row in members], ".4f"),
                spread(same, "+.4f"),
                spread(least, "+.4f"),
                spread(efficient, ".2f"),
                spread(own, ".2f"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the Markdown table of what stock AdamW and the rule of the product lose at β₁ 0.9, next to dense with the
    same seed, where both were run."""
    columns = [(plan, rule) for plan in PLANS for rule in (STOCK, POOLED)]
    lines = [
        "| task | M parameters | ranks | steps | 25x `adamw`: above dense, η | 25x pooled | 64x `adamw` | 64x pooled |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    medians: list[list[float]] = [[] for _ in columns]
    for (task, ranks, _, steps), group in sorted(groups(rows).items()):
        members = [
            [
                row
                for row in group.rows
                if (row["task"], row["beta1"], row["plan"], row["rule"]) == (task, 0.9, *column)
            ]
            for column in columns
        ]
        if not members[1] and not members[3]:
            continue
        cells = [f"`{task}`", f"{group.rows[0]['elements'] / 1e6:.2f}", str(ranks), str(steps)]
        for same, found in zip(members, medians, strict=True):
            etas = [eta for row in same if (eta := group.efficiency(row)) is not None]
            found += [median(etas)] if etas else []
            above = spread([group.above(row, settings_of(row)) for row in same], "+.3f")
            cells.append(f"{above}; {spread(etas, '.2f')}; {len(same)}" if same else "–")
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"| median of the tasks' | | | | {' | '.join(spread(found, '.2f') for found in medians)} |")
    return lines


def wire_cf(row: dict[str, Any]) -> float:
    """Return dense bytes / bytes handed to collectives; 0 where nothing is sent."""
    return 4 * row["elements"] / row["payload_bytes"] if row["payload_bytes"] else 0.0


def made(rule: str, parameter: nn.Parameter, beta2: float) -> torch.optim.Optimizer:
    """Return the optimizer of a rule for one parameter, without weight decay."""
    settings: dict[str, Any] = {"lr": SCALAR_RATE, "betas": (0.9, beta2), "weight_decay": 0.0}
    kind = torch.optim.AdamW if rule == STOCK else partial(LateAdamW, rule=parse_late(rule))
    return kind([parameter], **settings)


def give(optimizer: torch.optim.Optimizer, gradient: Tensor, age: float) -> None:
    """Do a step in which ``age`` steps' worth of gradient arrives; nothing if it is 0."""
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = gradient
    if isinstance(optimizer, LateAdamW):
        ages = torch.full_like(parameter, age)
        optimizer.ages = {parameter: (ages, ages.clamp_min(1.0))}
    optimizer.step()


def movement(rule: str, age: int, beta2: float, constant: bool, since: int, until: int) -> float:
    """Return how far gradients that arrive every ``age`` steps move between two steps, next to Adam that has them at
    once.

    It is the ratio of the mean movements where they are constant, else that of the deviations of white noise's.
    """
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.zeros(SCALARS)) for _ in range(2))
    late, adam = made(rule, ours, beta2), made(STOCK, theirs, beta2)
    waiting, nothing = torch.zeros(SCALARS), torch.zeros(SCALARS)
    begun = ours.detach().clone(), theirs.detach().clone()
    for step in range(1, until + 1):
        gradient = torch.ones(SCALARS) if constant else torch.randn(SCALARS, generator=generator)
        give(adam, gradient, 1.0)
        waiting += gradient
        due = step % age == 0
        give(late, waiting.clone() if due else nothing, float(age) if due else 0.0)
        waiting *= not due
        if step == since:
            begun = ours.detach().clone(), theirs.detach().clone()
    moved, dense = (end.detach() - start for end, start in zip((ours, theirs), begun, strict=True))
    return float(moved.mean() / dense.mean() if constant else moved.std() / dense.std())


def delay_of_ranks(rule: str, ranks: int, every: int, steps: int = LONG_AFTER[0]) -> float:
    """Return by how many steps white noise moves elements after it came, where each of several ranks sends the largest
    of what waits there, 1/``every`` of it: the mean lag of the correlation of movement and mean gradient."""
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(SCALARS))
    optimizer = made(rule, parameter, 0.95)
    ages = None if rule == STOCK else Ages(parse_late(rule), ranks)
    bucket = Bucket(0, ("x",), (SCALARS,), ((SCALARS,),))
    waiting, came, moved = torch.zeros(ranks, SCALARS), [], []
    for _ in range(steps):
        gradients = torch.randn(ranks, SCALARS, generator=generator)
        waiting += gradients
        supports = waiting.abs().topk(SCALARS // every).indices
        sent = torch.zeros_like(waiting).scatter_(1, supports, waiting.gather(1, supports))
        waiting -= sent
        parameter.grad, before = sent.mean(0), parameter.detach().clone()
        if isinstance(optimizer, LateAdamW) and ages is not None:
            optimizer.ages = {parameter: ages.arrived(bucket, supports.unbind())}
        optimizer.step()
        came.append(gradients.mean(0))
        moved.append(before - parameter.detach())
    first, last = torch.stack(came), torch.stack(moved)
    far = 5 * every
    lags = [float((first[:-far] * last[lag : len(last) - far + lag]).sum()) for lag in range(far)]
    return sum(lag * found for lag, found in enumerate(lags)) / sum(lags)


def delay(rule: str, age: int) -> float:
    """Return the steps from an arrival to the middle of its movement, where all others bring zeros and v is known."""
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = made(rule, parameter, 1 - 1e-12)
    start = torch.tensor(1e9, dtype=torch.float64) if rule == STOCK else 10**9
    zeros = torch.zeros_like(parameter)
    optimizer.state[parameter] = {
        "step": start,
        "exp_avg": zeros.clone(),
        "exp_avg_sq": torch.full_like(zeros, 1e3),
    }
    places = []
    for step in range(40 * age + 400):
        due = step % age == 0
        give(optimizer, torch.full_like(zeros, float(step == 0)), float(age) if due else 0.0)
        places.append(float(parameter.detach()))
    steps = [after - before for before, after in pairwise((0.0, *places))]
    return sum(number * moved for number, moved in enumerate(steps)) / places[-1]


def predicted(rule: str, age: int) -> tuple[float, float, float]:
    """Return the movement of a constant and of noise next to Adam's, and the delay, as derived; β₂ is close to 1."""
    late = None if rule == STOCK else parse_late(rule)
    move, power = ("replay", 1) if late is None else (late.move, late.power)
    decay, adams = 0.9**age, 0.9 / (1 - 0.9)
    ended = age * decay / (1 - decay)
    delays = {
        "end": ended,
        "mass": ended,
        "replay": adams,
        "eager": adams * (1 - decay) / (age * (1 - 0.9)),
        "delay": max(0.0, adams - (age - 1) / 2),
    }
    return age ** (power / 2 - 1), age ** ((power - 1) / 2), delays[move]


def scalars() -> list[str]:
    """Return a Markdown table of what was derived and what is measured on single elements."""
    lines = [
        "| rule | a | constant: derived, β₂ .999, .95 | noise: derived, β₂ .999, .95 | delay: derived, measured |",
        "|---|---:|---:|---:|---:|",
    ]
    for rule in (STOCK, "late:move=end", "late:move=eager", "late:move=eager,power=2"):
        for age in (4, 16, 64):
            constant, noise, late = predicted(rule, age)
            found = [
                [movement(rule, age, beta2, kind, *LONG_AFTER) for beta2 in (0.999, 0.95)]
                for kind in (True, False)
            ]
            lines.append(
                f"| `{rule}` | {age} | {constant:.2f}, {found[0][0]:.2f}, {found[0][1]:.2f} | "
                f"{noise:.2f}, {found[1][0]:.2f}, {found[1][1]:.2f} | {late:.1f}, {delay(rule, age):.1f} |"
            )
    lines += ["", "| rule | noise at the start: 1, 4, 16, 64 arrivals, a = 16 |", "|---|---:|"]
    for rule in (STOCK, "late:move=eager", "late:move=end", "late:move=end,correct=count"):
        found = [[movement(rule, 16, 0.999, False, 0, 16 * arrivals) for arrivals in (1, 4, 16, 64)]]
        lines.append(f"| `{rule}` | {', '.join(f'{each:.2f}' for each in found[0])} |")
    lines += [
        "",
        "| rule | delay of noise under Top-k 1/16: 1 rank | 4 ranks | 8 ranks |",
        "|---|---:|---:|---:|",
    ]
    for rule in (STOCK, *(f"late:move=eager,age={age}" for age in get_args(Age))):
        cells = [f"{delay_of_ranks(rule, ranks, 16):.1f}" for ranks in (1, 4, 8)]
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return lines


def page(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """Return the page with the lines of each part between ``<!-- part -->`` and the next ``<!-- end -->``."""
    for part, lines in parts.items():
        before, mark, rest = text.partition(f"<!-- {part} -->\n")
        text = before + mark + "\n".join([*lines, "<!-- end -->"]) + rest.partition("<!-- end -->")[2]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--tasks", nargs="+", required=True)
    running.add_argument("--plans", nargs="+", default=["dense"])
    running.add_argument("--rules", nargs="+", default=[STOCK])
    running.add_argument("--ranks", nargs="+", type=int, default=[4])
    running.add_argument("--seeds", nargs="+", type=int, default=[1])
    running.add_argument("--betas", nargs="+", default=["0.9/0.95"], help="beta1/beta2")
    running.add_argument("--steps", type=int, default=600)
    running.add_argument("--out", type=Path, required=True)
    for name in ("summary", "table", "scalars", "page"):
        commands.add_parser(name).add_argument("--rows", type=Path, default=ROWS)
    given = parser.parse_args()
    if given.command != "run":
        makers: dict[str, Callable[[], list[str]]] = {
            "summary": lambda: summary(pool.read_lines(given.rows)),
            "table": lambda: table(pool.read_lines(given.rows)),
            "scalars": scalars,
        }
        if given.command == "page":
            parts = {name: makers[name]() for name in ("summary", "scalars")}
            PAGE.write_text(page(PAGE.read_text(), parts))
        else:
            print("\n".join(makers[given.command]()))
        return
    known = {job_of(row) for row in pool.read_lines(given.out)}
    left = [job for job in wanted(given) if job not in known]
    for number, row in enumerate(pool.append_rows(run, left, given.out, 1), 1):
        print(
            f"{number} of {len(left)}: {row['task']}, {row['plan']}, {row['rule']}, β {row['beta1']:g} and "
            f"{row['beta2']:g}, {row['ranks']} ranks, seed {row['seed']}: {row['curve'][-1][1]:.4f}, "
            f"{wire_cf(row):.0f}x, {row['cpu_seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
