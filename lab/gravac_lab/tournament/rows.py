"""Rows of a tournament: one JSON object a line, one line for each run. Files may be compressed (``.xz``)."""

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gravac_lab.tournament.curves import LossCurve, curve_of

DENSE, ALONE = "dense", "alone"
"""Plans that every task needs: all others are compared with them."""
REPEAT = "dense:repeat="
"""What the plan of a repetition of dense begins with: the same seed, with rounding errors."""
ACCORDION, LGRECO = "accordion", "lgreco"
"""What the plan of a run begins with in which each layer has a strength of its own: of two, or of many."""
VALUE_BYTES = 4


class RowError(ValueError):
    """A file of rows cannot be used. The message names the file, the line and what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a tournament.

    Attributes:
        task: what was learned.
        plan: ``dense``, ``alone``, ``CODEC@CF/MEMORY/COLLECTIVE`` (the last two may be missing), ``accordion:…`` or
            ``lgreco:…``.
        ranks: simulated ranks.
        seed: of weights and data.
        steps: length of the run.
        optimizer: ``sgd``, ``adamw`` or ``lamb``.
        elements: of the gradient.
        payload_bytes: of a step on one rank; the mean of all steps.
        curve: held-out loss by step.
        sums: of each signal over the run; empty: not measured.
        sent_bytes: that a rank put on its link in a step, where payloads that cannot be summed are gathered; None: not
            counted.
        progress: share of the dense way that the parameters went, the mean over blocks of steps, so that those with
            the highest learning rates do not decide it; None: not measured.
    """

    task: str
    plan: str
    ranks: int
    seed: int
    steps: int
    optimizer: str
    elements: int
    payload_bytes: float
    curve: LossCurve
    sums: Mapping[str, float]
    sent_bytes: float | None = None
    progress: float | None = None

    @property
    def kind(self) -> str:
        """Kind of the optimizer, as in ``gravac.signals.efficiency``."""
        kinds = {"sgd": "sgd", "adamw-aged": "adam-aged", "adamw-low-beta": "adam-low-beta", "muon": "matrix"}
        return kinds.get(self.optimizer, "adam")

    @property
    def repeats_dense(self) -> bool:
        """Whether it is a repetition of dense, and no plan of its own."""
        return self.plan.startswith(REPEAT)

    @property
    def layered_codec(self) -> str | None:
        """The codec of a run in which each layer has a strength of its own; None for all other plans."""
        kind, _, rest = self.plan.partition(":")
        if kind == ACCORDION:
            return rest.partition("strong=")[2].partition("@")[0]
        return rest.partition("@")[0] if kind == LGRECO else None

    @property
    def sends(self) -> tuple[str, float] | None:
        """Codec and CF of a plan of one strength; None for all other plans."""
        codec, at, cf = self.plan.partition("/")[0].rpartition("@")
        return (codec, float(cf)) if at and self.layered_codec is None else None

    @property
    def collective(self) -> str:
        """The collective that a plan of one strength names; empty: none."""
        return self.plan.partition("/")[2].partition("/")[2] if self.sends else ""

    @property
    def wire_cf(self) -> float | None:
        """Dense bytes / bytes handed to collectives; None where nothing is sent."""
        return VALUE_BYTES * self.elements / self.payload_bytes if self.payload_bytes > 0 else None

    @property
    def backlog(self) -> float | None:
        """τ = Σ⟨residual, gradient⟩ / Σ‖gradient‖²: steps of progress that wait in the error memory."""
        return self._ratio("residual_dot_gradient", "gradient_sq")

    @property
    def gain(self) -> float | None:
        """Σ‖sent‖² / Σ‖gradient + residual‖²."""
        return self._ratio("sent_sq", "compensated_sq")

    def _ratio(self, above: str, below: str) -> float | None:
        total = self.sums.get(below, 0.0)
        return self.sums[above] / total if total > 0 and above in self.sums else None


def read_rows(paths: Iterable[Path]) -> list[Run]:
    """Read the rows of files. A last line without its end is left out, as the tournament may still write it.

    Raises:
        RowError: a line is no row, or a run is there twice.
        OSError: a file cannot be read.
    """
    found: dict[tuple[str, str, int, int, int], Run] = {}
    for path in paths:
        for number, line in enumerate(whole_lines(path), 1):
            run = _run(line, f"{path}, line {number}")
            key = (run.task, run.plan, run.ranks, run.seed, run.steps)
            if key in found:
                raise RowError(
                    f"{path}, line {number}: task={run.task!r} plan={run.plan!r} ranks={run.ranks} seed={run.seed} "
                    f"steps={run.steps} was there before; remove one of them"
                )
            found[key] = run
    return list(found.values())


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file. A last line without its end is left out: another process may still write it.

    Raises:
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _run(line: str, where: str) -> Run:
    try:
        row = json.loads(line)
        return Run(
            task=str(row["task"]),
            plan=str(row["plan"]),
            ranks=int(row["ranks"]),
            seed=int(row["seed"]),
            steps=int(row["steps"]),
            optimizer=str(row["optimizer"]),
            elements=int(row["elements"]),
            payload_bytes=float(row["payload_bytes"]),
            curve=curve_of(row["curve"]),
            sums={name: float(value) for name, value in row["sums"].items()},
            sent_bytes=float(row["sent_bytes"]) if "sent_bytes" in row else None,
            progress=float(row["progress"]) if "progress" in row else None,
        )
    except KeyError as error:
        raise RowError(f"{where}: has no {error}, so it is no row of `gravac bench tournament`") from None
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise RowError(f"{where}: is no row of `gravac bench tournament`: {error}") from None
