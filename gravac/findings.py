"""Findings: what is known of a job's speed or risk, how grave it is, what shows it, and what to do about it. Pure.

Policy ``observe``, the verdict on traces of a profiler, ``gravac doctor`` and the risk light speak by findings.
``diagnose`` is the one rule that makes a verdict of the time of a step. It counts nothing as zero that is not known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gravac.wording import format_percent, format_seconds

Severity = Literal["none", "low", "raised", "high", "unknown"]
"""unknown: nothing shows it, so the rule abstains."""

BANDS: Mapping[Severity, float] = {"low": 0.05, "raised": 0.10, "high": 0.20}
"""Share of a step from which a loss of time is of a severity. [share of a step; chosen]"""
NAMED = 0.8
"""Share of the exposed time that a cause must cover to be named alone. [share; chosen]"""
SHOWN = 0.001
"""Share of a step from which a part of it is listed. [share of a step; chosen]"""
WHY, NEXT = "Why: ", "Next: "
"""What the second and the third line of a verdict begin with."""


class Kind(NamedTuple):
    """What a finding can be.

    Attributes:
        lead: What its sentence begins with; empty: the evidence.
        condition: When it is found, in a sentence.
    """

    lead: str
    condition: str


_LARGEST = f"Transfers are {format_percent(NAMED)} of the exposed time or more"
KINDS: Mapping[str, Kind] = {
    "not measured": Kind("Observing dense steps", "No step was measured yet."),
    "not recognized": Kind(
        "No verdict on the network",
        "The recorded steps show no call of communication, and not that the job has a single rank.",
    ),
    "no exchange": Kind(
        "No gradient is exchanged",
        "Several ranks exchange neither gradients nor weights in the recorded steps.",
    ),
    "one rank": Kind("Not the network", "The job has a single rank, which exchanges nothing."),
    "other": Kind(
        "Not the network",
        f"Exposed communication is less than {format_percent(BANDS['low'])} of a step, or 8 % by traces of CPUs, whose "
        "small shares may be 3 points off.",
    ),
    "data first": Kind("Not the network first", "A step waits longer for data than for communication."),
    "small messages": Kind(
        "Network",
        "A step has 20 all-reduces of gradients or more, usually of less than 1 MB; where sizes are unknown, about "
        "one for each parameter. Waiting for late ranks is less than half of the exposed time.",
    ),
    "late ranks": Kind(
        "Late ranks, not the network",
        f"Waiting for ranks that come later is {format_percent(NAMED)} of the exposed time or more.",
    ),
    "network": Kind("Network", f"{_LARGEST}."),
    "network between machines": Kind(
        "Network between machines", f"{_LARGEST}, and the links between machines have the larger part."
    ),
    "network inside a machine": Kind(
        "Network inside a machine", f"{_LARGEST}, and the links inside machines have the larger part."
    ),
    "network or late ranks": Kind(
        "Network or late ranks", "The traces do not show which part of the exposed time waits for late ranks."
    ),
    "several causes": Kind(
        "Several causes",
        f"Neither transfers nor late ranks are {format_percent(NAMED)} of the exposed time.",
    ),
    "compress": Kind(
        "Compress", "A plan keeps the bound, and is predicted to be faster than dense by a margin."
    ),
    "stay dense": Kind(
        "Do not compress", "No plan keeps the bound and is predicted to be faster by a margin."
    ),
    "learning": Kind("", "The statistical efficiency of a window, next to the loss of it that is accepted."),
    "residual": Kind("", "The norm of the residual, next to that of one gradient."),
    "gain": Kind("", "The gain is below ε, or hardly above."),
    "steps left out": Kind("", "A gradient was not finite, so its step was left out."),
    "all sent": Kind("", "Everything is sent, and the residual is empty."),
    "unknown optimizer": Kind("", "The kind of the optimizer is not known."),
    "not judged": Kind(
        "", "A window shows no gradient, no memory, or an optimizer that was never simulated."
    ),
    "one window": Kind("", "The last window alone says another level than those before it."),
}
"""Everything that can be found, in the order of docs/findings.md."""
LOSSES = {
    "data loader": "load data faster, for which a step waits {} of its time: give the loader more workers",
    "computation": "speed up computation, {} of a step: lower precision, torch.compile, larger batches",
    "idle GPU": "keep the GPU busy, which waits for its host for {} of a step: look for .item() and for small kernels, "
    "and try torch.compile",
    "other work of the host": "look at the program: {} of a step is neither operators nor communication",
}
"""What to do about losses of time that are no communication."""
APART = (
    "call the model that DistributedDataParallel returned, not its module, and convert the model (.to(dtype), .half()) "
    "before it is wrapped: afterwards its hooks are gone. Where steps accumulate under no_sync, record more of them; "
    "where gravac.Agent exchanges, record with profile_all_threads"
)
"""What to do about ranks that exchange nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: Key of ``KINDS``.
        severity: How grave it is.
        evidence: What shows it, without full stops; the first one is part of the sentence.
        action: What to do about it, without a full stop; empty: nothing.
    """

    kind: str
    severity: Severity
    evidence: tuple[str, ...]
    action: str = ""

    @property
    def sentence(self) -> str:
        """What was found."""
        lead = KINDS[self.kind].lead
        return f"{lead}: {self.evidence[0]}." if lead else f"{self.evidence[0]}."

    @property
    def why(self) -> str:
        """The rest of the evidence; empty: there is none."""
        return "; ".join(self.evidence[1:])

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentence, why, and what to do next, as far as they are known."""
        more = (f"{begin}{text}." for begin, text in ((WHY, self.why), (NEXT, self.action)) if text)
        return self.sentence, *more

    def record(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "verdict": self.sentence,
            "why": self.why or None,
            "next": self.action or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The parts of a step's time, in seconds.

    Attributes:
        step: The whole step.
        exposed: Communication while nothing is computed; None: no communication was recognized.
        waiting: Part of the exposed time that waits for ranks that come later; None: unknown.
        losses: What is no communication, by a key of ``LOSSES`` or any other name.
        levels: Exposed seconds by level of links; empty: unknown, or there is one machine.
        alone: Whether the job has a single rank, which exchanges nothing.
        apart: Ranks that exchange nothing that is learned; 0: they do exchange.
        small: Evidence that gradients go in many small messages; empty: they do not.
        evidence: What else the verdict follows from, a text each, in front of the parts of the step.
        unsure: What a small exposed share may be off by.
        place: Network and ranks that steps are predicted for; empty: the step ran like that.
        error: Relative error of a predicted step.
    """

    step: float
    exposed: float | None
    waiting: float | None
    losses: Mapping[str, float]
    levels: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False
    apart: int = 0
    small: str = ""
    evidence: tuple[str, ...] = ()
    unsure: float = 0.0
    place: str = ""
    error: float = 0.0

    @property
    def listed(self) -> str:
        """The losses as shares of the step."""
        shares = {name: min(1.0, seconds / self.step) for name, seconds in self.losses.items()}
        return ", ".join(f"{name} {format_percent(share)}" for name, share in shares.items() if share > SHOWN)

    @property
    def largest_loss(self) -> tuple[str, float]:
        """Name and seconds of the largest loss that is no computation and that something can be done about."""
        others = {
            name: seconds for name, seconds in self.losses.items() if name in LOSSES and name != "computation"
        }
        return max(others.items(), key=lambda item: item[1], default=("", 0.0))


def severity(share: float) -> Severity:
    """Return how grave it is to lose a share of a step."""
    found: Severity = "none"
    for name, least in BANDS.items():
        if share >= least:
            found = name
    return found


def diagnose(parts: StepParts, compress: Callable[[], str], hurry: Callable[[], str]) -> Finding:
    """Return the verdict on a step: whether it waits for the network, or for what else.

    Args:
        parts: Parts of its time.
        compress: Says what to do about transfers.
        hurry: Says what to do about late ranks.
    """
    why = [
        *parts.evidence,
        *([f"of a step{' there' * bool(parts.place)}, {parts.listed}"] if parts.listed else []),
    ]
    if parts.apart:
        said = f"{parts.apart} ranks train apart in the recorded steps"
        none = "no call carries gradients or weights"
        return Finding(kind="no exchange", severity="high", evidence=(said, none, *why), action=APART)
    if parts.alone:
        said = "nothing is communicated"
        return Finding(kind="one rank", severity="none", evidence=(said, *why), action=faster(parts))
    if parts.exposed is None:
        said = "no communication was recognized in the recorded steps"
        return Finding(kind="not recognized", severity="unknown", evidence=(said, *why), action=faster(parts))
    share = parts.exposed / parts.step
    said = _said(parts, parts.exposed, share)
    if share < BANDS["low"] + parts.unsure:
        limit = "" if parts.place else "; compression can save at most that"
        return Finding(kind="other", severity="none", evidence=(f"{said}{limit}", *why), action=faster(parts))
    loader = parts.losses.get("data loader", 0.0)
    if loader > parts.exposed:
        first = f"a step waits {format_percent(loader / parts.step)} of its time for data, and {said}"
        grave = severity(loader / parts.step)
        return Finding(kind="data first", severity=grave, evidence=(first, *why), action=faster(parts))
    kind, more, action = _cause(parts, parts.exposed, compress, hurry)
    if kind == "small messages":
        why.insert(0, parts.small)
    elif kind != "late ranks" and (largest := parts.largest_loss)[1] > parts.exposed:
        action += f"; a larger loss: {_remedy(largest[0], largest[1] / parts.step)}"
    return Finding(kind=kind, severity=severity(share), evidence=(f"{said}{more}", *why), action=action)


def faster(parts: StepParts) -> str:
    """Return what to do about the largest loss that is no communication."""
    name, seconds = parts.largest_loss
    if seconds < BANDS["low"] * parts.step:
        name, seconds = "computation", parts.losses.get("computation", 0.0)
    return _remedy(name, min(1.0, seconds / parts.step))


def _remedy(name: str, share: float) -> str:
    return LOSSES[name].format(format_percent(share))


def _said(parts: StepParts, exposed: float, share: float) -> str:
    """Return the exposed share in words."""
    seconds = f"{format_seconds(exposed)} of {format_seconds(parts.step)}"
    if not parts.place:
        return f"{format_percent(share)} of a step is exposed communication ({seconds})"
    return (
        f"{parts.place}, {format_percent(share)} of a step would be exposed communication ({seconds}, "
        f"±{format_percent(parts.error)})"
    )


def _cause(
    parts: StepParts, exposed: float, compress: Callable[[], str], hurry: Callable[[], str]
) -> tuple[str, str, str]:
    """Return the kind of an exposed share that counts, what to say of it, and what to do."""
    waiting = parts.waiting
    levels = ", ".join(f"{format_seconds(seconds)} {level}" for level, seconds in parts.levels.items())
    each = f": {levels}" if levels else ""
    if parts.small and (waiting is None or waiting <= exposed / 2):
        return "small messages", f", in many small messages{each}", compress()
    if waiting is None:
        return "network or late ranks", "; how much of it waits for late ranks is not known", compress()
    if waiting >= NAMED * exposed:
        return "late ranks", f", {format_seconds(waiting)} of it waiting for ranks that come later", hurry()
    if exposed - waiting >= NAMED * exposed:
        most = max(parts.levels, key=lambda level: parts.levels[level], default="")
        return f"network {most}".rstrip(), each, compress()
    late = f"{format_seconds(waiting)} waiting for ranks that come later"
    sent = f"{format_seconds(exposed - waiting)} transferring"
    if waiting >= exposed / 2:
        return "several causes", f": {late}, {sent}", hurry()
    return "several causes", f": {sent}, {late}", compress()
