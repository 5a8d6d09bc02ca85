"""What calls of communication are for: gradients, weights, activations, pipeline stages, optimizer, scalars."""

from gravac_observe.traces.trace import Call, RankTrace

GRADIENTS, REPLICAS, WEIGHTS = "gradients", "gradients between replicas", "weights"
ACTIVATIONS, PIPELINE, EXPERTS = "activations", "pipeline", "embeddings or experts"
BUFFERS, OPTIMIZER, SCALARS, BARRIER, OTHER = "buffers", "optimizer", "scalars", "barrier", "other"
WORDS = {
    GRADIENTS: "gradients",
    REPLICAS: "gradients between replicas (HSDP)",
    WEIGHTS: "sharded weights",
    ACTIVATIONS: "activations of tensor parallelism",
    PIPELINE: "activations between pipeline stages",
    EXPERTS: "embeddings or experts",
    BUFFERS: "buffers of DDP",
    OPTIMIZER: "weights or state in the step of the optimizer",
    SCALARS: "losses, metrics and counts",
    BARRIER: "barriers",
    OTHER: "other",
}
"""The patterns, and what they are called."""
MESSAGES = ("send", "recv", "send/recv")
"""Kinds of calls between two ranks."""
OF_AGENTS = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter")
"""Kinds of calls by which an Agent exchanges compressed gradients."""
FEW = 64
"""Elements up to which a call outside of backward carries numbers, such as a loss."""


def classify(trace: RankTrace, wrapper: str) -> None:
    """Give each call its pattern, by its kind, its phase and what its group does else.

    Args:
        trace: Of one rank, with linked calls.
        wrapper: What exchanges gradients: an Agent does in its own ways, and DeepSpeed gathers weights without a mark.
    """
    seen = _Seen(trace, wrapper)
    for call in trace.calls:
        call.pattern = _pattern(call, seen)


class _Seen:
    """What the groups of a trace are used for: those that split a layer, and those that shard its gradients."""

    def __init__(self, trace: RankTrace, wrapper: str) -> None:
        calls, self.gradients, self.wrapper = trace.calls, {size for _, size in trace.gradients}, wrapper
        # An Agent sends messages on another thread, pipeline stages do on these.
        self.training = {*trace.nodes, *trace.regions}
        self.split = {
            _key(call)
            for call in calls
            if call.phase == "forward"
            and call.about.kind in ("all-reduce", "reduce-scatter")
            and not call.region.startswith(("FSDP", "Fully"))
            and not _is_few(call)
        }
        self.sharded = {
            call.about.group
            for call in calls
            if call.about.kind == "reduce-scatter"
            and call.phase == "backward"
            and _key(call) not in self.split
        }


def _key(call: Call) -> tuple[tuple[int, ...], int | None]:
    return call.about.group, None if call.about.group else call.about.elements


def _is_few(call: Call) -> bool:
    return call.about.elements is not None and call.about.elements <= FEW


def _pattern(call: Call, seen: _Seen) -> str:
    kind, phase = call.about.kind, call.phase
    if kind == "barrier":
        return BARRIER
    if (
        seen.wrapper == "agent"
        and (kind in OF_AGENTS or (kind in MESSAGES and call.thread not in seen.training))
        and not call.region.startswith(("FSDP", "Fully"))
        and not _is_few(call)
    ):
        return GRADIENTS
    if kind == "all-to-all":
        return EXPERTS
    if kind in MESSAGES:
        return PIPELINE
    if (
        phase != "backward"
        and _is_few(call)
        and not (phase == "after" and call.about.elements in seen.gradients)
    ):
        return BUFFERS if kind == "broadcast" and "DistributedDataParallel" in call.region else SCALARS
    if phase == "optimizer":
        return OPTIMIZER
    if call.region.startswith(("FSDP", "Fully")):
        return {"all-gather": WEIGHTS, "reduce-scatter": GRADIENTS, "all-reduce": REPLICAS}.get(kind, OTHER)
    if kind == "broadcast":
        return BUFFERS if "DistributedDataParallel" in call.region else OTHER
    if call.about.counts:  # such as what DDP's ranks did not use
        return SCALARS
    if kind in ("all-reduce", "reduce-scatter", "reduce"):
        if phase == "forward" or _key(call) in seen.split:
            return ACTIVATIONS
        if kind == "all-reduce" and seen.sharded and call.about.group not in seen.sharded:
            return REPLICAS
        return GRADIENTS
    if kind == "all-gather" and phase in ("forward", "backward"):
        return WEIGHTS if seen.wrapper == "deepspeed" or call.about.group in seen.sharded else ACTIVATIONS
    return OTHER
