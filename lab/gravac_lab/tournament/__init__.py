"""What the runs of a tournament say: statistical efficiency, retained value, signals, and time to a target on a link.

Needs no torch.
"""

from gravac_lab.tournament.baseline import Baseline, baselines, place
from gravac_lab.tournament.curves import LossCurve, efficiency, retained_value, target_level
from gravac_lab.tournament.rows import RowError, Run, read_rows
from gravac_lab.tournament.standings import SeedSpread, Standing, standings

__all__ = [
    "Baseline",
    "LossCurve",
    "RowError",
    "Run",
    "SeedSpread",
    "Standing",
    "baselines",
    "efficiency",
    "place",
    "read_rows",
    "retained_value",
    "standings",
    "target_level",
]
