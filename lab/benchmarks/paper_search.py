"""Where policy gravac ends on the T_comp figures that the GraVAC paper publishes, against the best of them.

    python lab/benchmarks/paper_search.py [--noise 0.03] [--seeds 50] [--json]

The figures are the T_comp of each CF, read off Fig. 7 to 9 (exponential ladder) and 10b (geometric) of GraVAC (arXiv
2305.12201). The policy runs on windows made from them. T_comp is T_sys · gain, of which the paper gives neither: here
the gain falls evenly from 1 at the first rung to ε at the last, or is ε at every rung, and T_sys follows. Dense has
half the T_comp of the first rung. The wait for the network is unknown, or such that the fastest rung hardly waits. In
each window the step time is off by at most ``--noise``. A row sums up all of these: the least T_comp counts.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools.harness

from gravac.policies import GravacPolicy
from gravac.protocol import Decision, SmoothedGain, WindowReport
from tools.harness.cluster import Cluster, Run, level_sums

EXPONENTIAL = (10.0, 20.0, 40.0, 160.0, 1000.0)
GEOMETRIC = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2000.0)
FREE = 1.02
"""Samples/s without any wait, over those of the fastest rung."""


@dataclass(frozen=True)
class Figure:
    """T_comp by CF as published. ``source``: where."""

    name: str
    source: str
    epsilon: float
    ladder: Literal["exponential", "geometric"]
    t_comp: dict[float, float]

    @property
    def best(self) -> float:
        """The highest T_comp."""
        return max(self.t_comp.values())


FIGURES = (
    Figure(
        "ResNet101, ε 0.9",
        "Fig. 7",
        0.9,
        "exponential",
        dict(zip(EXPONENTIAL, (980, 1140, 1300, 1190, 1420), strict=True)),
    ),
    Figure(
        "ResNet101, ε 0.7",
        "Fig. 7",
        0.7,
        "exponential",
        dict(zip(EXPONENTIAL, (840, 890, 1000, 940, 1190), strict=True)),
    ),
    Figure(
        "VGG16, ε 0.9",
        "Fig. 8",
        0.9,
        "exponential",
        dict(zip(EXPONENTIAL, (455, 430, 720, 755, 870), strict=True)),
    ),
    Figure(
        "VGG16, ε 0.7",
        "Fig. 8",
        0.7,
        "exponential",
        dict(zip(EXPONENTIAL, (340, 275, 665, 620, 750), strict=True)),
    ),
    Figure(
        "LSTM, ε 0.9",
        "Fig. 9",
        0.9,
        "exponential",
        dict(zip(EXPONENTIAL, (130, 160, 220, 500, 1760), strict=True)),
    ),
    Figure(
        "LSTM, ε 0.7",
        "Fig. 9",
        0.7,
        "exponential",
        dict(zip(EXPONENTIAL, (130, 160, 220, 500, 1760), strict=True)),
    ),
    Figure(
        "ResNet101, ε 0.7, geometric",
        "Fig. 10b",
        0.7,
        "geometric",
        dict(zip(GEOMETRIC, (730, 775, 803, 900, 930, 870, 960, 1030, 1035), strict=True)),
    ),
)
POLICIES: dict[str, dict[str, object]] = {
    "gravac": {},
    "variant=paper": {"variant": "paper"},
}
GAINS = ("falling", "flat")


@dataclass(frozen=True)
class Published(Cluster):
    """A cluster whose T_comp are those of a figure. Each window is off by at most ``noise`` (relative)."""

    figure: Figure = FIGURES[0]
    shape: str = "falling"
    wait_known: bool = True
    noise: float = 0.0
    seed: int = 0
    gains: dict[float, float] = field(init=False)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        rungs, epsilon = tuple(self.figure.t_comp), self.figure.epsilon
        start = 1.0 if self.shape == "falling" else epsilon
        shares = (place / (len(rungs) - 1) for place in range(len(rungs)))
        gains = (start - share * (start - epsilon) for share in shares)
        object.__setattr__(self, "gains", dict(zip(rungs, gains, strict=True)))
        object.__setattr__(self, "chance", random.Random(self.seed))

    def rate(self, cf: float) -> float:
        """Samples/s."""
        if cf == 1.0:
            return next(iter(self.figure.t_comp.values())) / 2
        return self.figure.t_comp[cf] / self.gains[cf]

    def step_seconds(self, cf: float) -> float:
        return self.samples_per_step / self.rate(cf)

    def report(self, window: int, decision: Decision, **changes: object) -> WindowReport:
        cf, off = self.sent(decision), 1 + self.chance.uniform(-self.noise, self.noise)
        free = self.samples_per_step / (FREE * max(map(self.rate, self.figure.t_comp)))
        seconds = self.step_seconds(cf) * off
        exposed = max(0.0, seconds - free * off) if self.wait_known else None
        steps = self.window_steps
        level = level_sums(decision.epoch, cf, steps, steps - self.settle_steps, seconds, exposed)
        measured = sorted({decision.cf_minimum, decision.cf_candidate} - {1.0})
        gains = tuple(SmoothedGain(cf=value, gain=self.gain(value)) for value in measured)
        return super().report(window, decision, **{"levels": (level,), "gains": gains} | changes)


@dataclass(frozen=True)
class Row:
    """Where a policy ended, over all kinds of gains, waits and seeds."""

    figure: str
    policy: str
    best_cf: float
    best: float
    cfs: tuple[float, ...]
    least: float
    windows: int

    @property
    def share(self) -> float:
        """The least T_comp at the end, over the best."""
        return self.least / self.best


def end(figure: Figure, settings: dict[str, object], cluster: Published, most: int = 40) -> tuple[float, int]:
    """Return the CF that the policy holds when its search is over, and the window in which that was decided.

    Printed rules may never end their search: then, the CF after ``most`` windows.
    """
    top = max(figure.t_comp)
    given = {"epsilon": figure.epsilon, "ladder": figure.ladder, "cf_max": top, **settings}
    run = Run(GravacPolicy(**given), cluster)
    for _ in range(most):
        if run.windows().phase == "hold":
            break
    return cluster.sent(run.last), run.last.window


def rows(noise: float, seeds: Sequence[int]) -> list[Row]:
    """Run every policy on every figure."""
    found = []
    for figure, (name, settings) in product(FIGURES, POLICIES.items()):
        ends = [
            end(
                figure,
                settings,
                Published(figure=figure, shape=shape, wait_known=known, noise=noise, seed=seed),
            )
            for shape, known, seed in product(GAINS, (True, False), seeds)
        ]
        cfs = tuple(sorted({cf for cf, _ in ends}))
        found.append(
            Row(
                figure=figure.name,
                policy=name,
                best_cf=max(figure.t_comp, key=lambda cf, figure=figure: figure.t_comp[cf]),  # type: ignore[misc]
                best=figure.best,
                cfs=cfs,
                least=min(figure.t_comp.get(cf, 0.0) or _dense(figure) for cf in cfs),
                windows=max(window for _, window in ends),
            )
        )
    return found


def _dense(figure: Figure) -> float:
    return Published(figure=figure).rate(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--noise", type=float, default=0.03, help="largest relative error of a window's step time"
    )
    parser.add_argument("--seeds", type=int, default=50, help="runs of each kind with different noise")
    parser.add_argument("--json", action="store_true", help="one object a line")
    asked = parser.parse_args()
    made = rows(asked.noise, range(asked.seeds if asked.noise else 1))
    if asked.json:
        for row in made:
            print(json.dumps({**vars(row), "share": row.share}))
        return
    print("| figure | policy | best T_comp | ends at CF | least T_comp | of the best % | windows, at most |")
    print("|---|---|---|---|---|---|---|")
    for row in made:
        cfs = ", ".join(f"{cf:g}" for cf in row.cfs)
        print(
            f"| {row.figure} | `{row.policy}` | {row.best:g} at {row.best_cf:g} | {cfs} | {row.least:g} | "
            f"{100 * row.share:.1f} | {row.windows + 1} |"
        )


if __name__ == "__main__":
    main()
