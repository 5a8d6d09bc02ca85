"""What the ranks of the distributed tests do. Every function runs on each rank and returns what the test compares."""

from ranks.scenarios.exactness import (
    conserved,
    hashed,
    many_steps,
    nonfinite,
    same_as_ddp,
    switching,
    true_gains,
)
from ranks.scenarios.faults import disagreement, failing_codec, one_fails, settings_differ
from ranks.scenarios.kinds import keeps_failing, mixed_kinds, narrow, overflow_of_the_mean
from ranks.scenarios.members import (
    chosen_collectives,
    every_codec,
    momentum_in_the_memory,
    switched,
    switched_differently,
    thresholds,
    unstable_memory,
)
from ranks.scenarios.model import batch, each_of, fingerprint, net, train, wrapped
from ranks.scenarios.service import (
    controller_dies,
    controller_missing,
    monitored,
    names_taken,
    narrated,
    resumed,
    same_job_twice,
    steered,
)
from ranks.scenarios.styles import Branchy, overflow_under_amp, styled_steps, training_styles, two_groups

__all__ = [
    "Branchy",
    "batch",
    "chosen_collectives",
    "conserved",
    "controller_dies",
    "controller_missing",
    "disagreement",
    "each_of",
    "every_codec",
    "failing_codec",
    "fingerprint",
    "hashed",
    "keeps_failing",
    "many_steps",
    "mixed_kinds",
    "momentum_in_the_memory",
    "monitored",
    "names_taken",
    "narrated",
    "narrow",
    "net",
    "nonfinite",
    "one_fails",
    "overflow_of_the_mean",
    "overflow_under_amp",
    "resumed",
    "same_as_ddp",
    "same_job_twice",
    "settings_differ",
    "steered",
    "styled_steps",
    "switched",
    "switched_differently",
    "switching",
    "thresholds",
    "train",
    "training_styles",
    "true_gains",
    "two_groups",
    "unstable_memory",
    "wrapped",
]
