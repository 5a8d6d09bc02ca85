"""What the ranks of the distributed tests run. Each function runs on every rank and returns what the test compares."""

from tests.support.ranks.scenarios.checkpoints import (
    loads_wrongly,
    rank_0_moves,
    resharded,
    resumed_from_dcp,
    sharded_from_dcp,
    without_an_agent,
)
from tests.support.ranks.scenarios.clipping import clipped
from tests.support.ranks.scenarios.closures import closures
from tests.support.ranks.scenarios.default_dtype import any_default_dtype
from tests.support.ranks.scenarios.exactness import (
    conserved,
    hashed,
    many_steps,
    nonfinite,
    same_as_ddp,
    switching,
    true_gains,
)
from tests.support.ranks.scenarios.faults import disagreement, failing_codec, one_fails, settings_differ
from tests.support.ranks.scenarios.features import features
from tests.support.ranks.scenarios.hybrid import (
    clipped_alike,
    hybrid_is_native,
    hybrid_losses,
    hybrid_refused,
    hybrid_resumed,
    replicas_conserve,
)
from tests.support.ranks.scenarios.hybrid_jobs import (
    hybrid_job,
    hybrid_nonfinite,
    residual_after_close,
    shards_of_one,
)
from tests.support.ranks.scenarios.kinds import (
    cannot_decode,
    keeps_failing,
    mixed_kinds,
    narrow,
    overflow_of_the_mean,
    without_elements,
)
from tests.support.ranks.scenarios.lifetime import copied, one_leaves, sweep
from tests.support.ranks.scenarios.members import (
    chosen_collectives,
    every_codec,
    momentum_in_the_memory,
    switched,
    switched_differently,
    thresholds,
    unstable_memory,
)
from tests.support.ranks.scenarios.misuse import compiled, fails_alone, peer_dies, several_optimizers, uneven
from tests.support.ranks.scenarios.model import batch, each_of, fingerprint, net, train, wrapped
from tests.support.ranks.scenarios.one_copy import held_by_memory, undone
from tests.support.ranks.scenarios.optimizers import own_optimizers, stepped_by_others
from tests.support.ranks.scenarios.plans import plans_in_turn, resumed_between_plans
from tests.support.ranks.scenarios.progress import progress, progress_as_simulated, progress_off
from tests.support.ranks.scenarios.service import (
    another_training,
    controller_dies,
    controller_missing,
    logged,
    monitored,
    names_taken,
    resumed,
    resumed_under_another_policy,
    same_job_twice,
    steered,
)
from tests.support.ranks.scenarios.several import (
    dropped,
    gan,
    groups_of_some_ranks,
    interleaved,
    one_optimizer,
    other_order,
)
from tests.support.ranks.scenarios.sharded import (
    backward_fails,
    branches_conserved,
    given_back,
    pairs_of_members,
    row_nonfinite,
    rows_conserved,
    same_as_fsdp,
    sharding_refused,
)
from tests.support.ranks.scenarios.sharded_jobs import (
    ranks_change,
    sharded_job,
    sharded_losses,
    sharded_resumed,
)
from tests.support.ranks.scenarios.streams import on_streams
from tests.support.ranks.scenarios.styles import (
    Branchy,
    overflow_under_amp,
    styled_steps,
    training_styles,
    two_groups,
)
from tests.support.ranks.scenarios.tasks import task_trained
from tests.support.ranks.scenarios.unused import unused_parameters

__all__ = [
    "Branchy",
    "another_training",
    "any_default_dtype",
    "backward_fails",
    "batch",
    "branches_conserved",
    "cannot_decode",
    "chosen_collectives",
    "clipped",
    "clipped_alike",
    "closures",
    "compiled",
    "conserved",
    "controller_dies",
    "controller_missing",
    "copied",
    "disagreement",
    "dropped",
    "each_of",
    "every_codec",
    "failing_codec",
    "fails_alone",
    "features",
    "fingerprint",
    "gan",
    "given_back",
    "groups_of_some_ranks",
    "hashed",
    "held_by_memory",
    "hybrid_is_native",
    "hybrid_job",
    "hybrid_losses",
    "hybrid_nonfinite",
    "hybrid_refused",
    "hybrid_resumed",
    "interleaved",
    "keeps_failing",
    "loads_wrongly",
    "logged",
    "many_steps",
    "mixed_kinds",
    "momentum_in_the_memory",
    "monitored",
    "names_taken",
    "narrow",
    "net",
    "nonfinite",
    "on_streams",
    "one_fails",
    "one_leaves",
    "one_optimizer",
    "other_order",
    "overflow_of_the_mean",
    "overflow_under_amp",
    "own_optimizers",
    "pairs_of_members",
    "peer_dies",
    "plans_in_turn",
    "progress",
    "progress_as_simulated",
    "progress_off",
    "rank_0_moves",
    "ranks_change",
    "replicas_conserve",
    "resharded",
    "residual_after_close",
    "resumed",
    "resumed_between_plans",
    "resumed_from_dcp",
    "resumed_under_another_policy",
    "row_nonfinite",
    "rows_conserved",
    "same_as_ddp",
    "same_as_fsdp",
    "same_job_twice",
    "settings_differ",
    "several_optimizers",
    "sharded_from_dcp",
    "sharded_job",
    "sharded_losses",
    "sharded_resumed",
    "sharding_refused",
    "shards_of_one",
    "steered",
    "stepped_by_others",
    "styled_steps",
    "sweep",
    "switched",
    "switched_differently",
    "switching",
    "task_trained",
    "thresholds",
    "train",
    "training_styles",
    "true_gains",
    "two_groups",
    "undone",
    "uneven",
    "unstable_memory",
    "unused_parameters",
    "without_an_agent",
    "without_elements",
    "wrapped",
]
