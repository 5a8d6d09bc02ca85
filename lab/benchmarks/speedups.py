"""How many times sooner jobs of ``auto`` reach the target than dense training: the table of README.md.

python -m lab.benchmarks.speedups
"""

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from claims import DEFAULT, JOBS, ROWS
from regret import TARGET, cells
from regret_parts.jobs import read_jobs
from regret_parts.links import LINKS

from gravac_lab.tournament import read_rows

RANKS = 4
TASKS = {
    "lm": "LSTM, SGD",
    "lm:optimizer=adamw": "LSTM, AdamW",
    "gpt:size=0.3m": "GPT, AdamW",
    "resnet": "ResNet, SGD",
}


def main() -> None:
    """Print a row for each task: medians over seeds of the time of dense / the time of the job."""
    compared, _ = cells(read_rows(ROWS), read_jobs(JOBS), TARGET)
    found = {(pair.task, pair.link): pair.jobs[DEFAULT].times for pair in compared if pair.ranks == RANKS}
    for task, words in TASKS.items():
        print(f"| {words} | " + " | ".join(f"{1 / median(found[task, link]):.1f}" for link in LINKS) + " |")


if __name__ == "__main__":
    main()
