"""AdamW for gradients that arrive late: studied rules of how it takes several steps' worth of a gradient at once.

``lab/benchmarks/adam.md`` derives the rules and shows what they do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gravac.memories import Bucket
from gravac.registry import split

Age = Literal["any", "share", "pooled"]
Move = Literal["end", "replay", "mass", "eager", "delay"]
Correct = Literal["time", "count"]
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Late:
    """A rule.

    Attributes:
        move: What happens to the first moment. With ``eager`` and ``delay`` it moves all elements in every step, as
            Adam's does, and of u a part moves at once: the part that Adam would have moved by, had u come over w steps
            (``eager``), or so much that error feedback and the moment together delay u as Adam's moment does alone,
            where they can (``delay``). With the others an element moves only when it arrives: as Adam would in a steps
            that each had the gradient u/a (``replay``), a times as in the last of these steps (``end``), or by what
            Adam's moment would let out in a steps with all of u in it (``mass``).
        age: Steps' worth of gradient a that arrived. ``any``: the steps since any rank sent the element. ``share``:
            the mean over ranks of the steps since each sent it, of those that send it now. ``pooled``: a share of what
            waits, as large as the share of ranks that send. How long it waited, w, is a for ``any``, the mean over the
            ranks that send for ``share``, and all that waits for ``pooled``.
        power: u²/a^power counts as the square of the gradient in each of the a steps; 1 or 2.
        cap: a is at most this.
        wait: What waits, T steps' worth, came over w = 1 + wait · (T - 1) steps: with 1 over T, with 2 so that T is its
            mean delay.
        correct: Whether moments are corrected for their start by the ``time`` or by the ``count`` of arrivals.
    """

    move: Move = "end"
    age: Age = "any"
    power: float = 1
    cap: float = 64
    wait: float = 1
    correct: Correct = "time"

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("move", self.move, Move),
            ("age", self.age, Age),
            ("correct", self.correct, Correct),
        ):
            if value not in get_args(kind):
                raise ValueError(f"late: {name}={value!r} must be one of {', '.join(get_args(kind))}")


def parse_late(text: str) -> Late:
    """Read a rule such as ``late`` or ``late:move=eager,age=share``.

    Raises:
        ValueError: There is no such rule, setting or value.
    """
    name, settings = split(text, "rule")
    if name != "late" or (unknown := set(settings) - set(Late.__slots__)):
        raise ValueError(
            f"rule={text!r} must be adamw, or late with the settings {', '.join(Late.__slots__)}"
            + ("" if name != "late" else f", not {', '.join(sorted(unknown))}")
        )
    return Late(**settings)


class Ages:
    """Steps' worth of gradient that arrived of each element, from which ranks sent it.

    Args:
        rule: Says how it is counted.
        ranks: World size.
    """

    def __init__(self, rule: Late, ranks: int) -> None:
        self._rule, self._ranks = rule, ranks
        self._waiting: dict[int, Tensor] = {}

    def arrived(
        self, bucket: Bucket, supports: Sequence[Tensor | None], share: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a and w of each element of a bucket, float32 of shape ``(n,)``; a is 0 where nothing arrived.

        Args:
            bucket: The bucket.
            supports: By rank, the positions that it sent; None: all.
            share: Of what waits of each element, what arrived; None: as large a share as that of the ranks that sent.
        """
        n, rule, ranks = sum(bucket.numels), self._rule, self._ranks
        if bucket.number not in self._waiting:
            rows = ranks if rule.age == "share" else 1
            self._waiting[bucket.number] = torch.zeros(rows, n, dtype=torch.float32)
        waiting = self._waiting[bucket.number].add_(1.0)
        found, senders = torch.zeros(2, n, dtype=torch.float32)
        for support in supports:
            senders[slice(None) if support is None else support.long()] += 1.0
        if rule.age == "share":
            for row, support in zip(waiting, supports, strict=True):
                places = slice(None) if support is None else support.long()
                found[places] += row[places] / ranks
                row[places] = 0.0
            wait = found * ranks / senders.clamp_min(1.0)
        else:
            wait = waiting[0].clone()
            share = senders / ranks if share is None else share
            found = wait * (share if rule.age == "pooled" else (share > 0))
            waiting[0] -= found
        wait.sub_(1.0).mul_(rule.wait).add_(1.0)
        return found.clamp_max_(rule.cap), wait.clamp_(1.0, rule.cap)


class LateAdamW(Optimizer):
    """AdamW that knows how many steps' worth of each gradient arrived: ``ages`` by parameter, before each step.

    Elements that did not arrive keep their moments and do not move, but for weight decay. Where all of a parameter's
    elements are one step old it is Adam.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the moments, per step.
        weight_decay: As AdamW's.
        rule: How late gradients are taken.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        rule: Late,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "rule": rule})
        self.rule = rule
        self.ages: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        """a and w by parameter, of its shape; a parameter that is not there has all of its gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move every parameter that has a gradient. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        rule, state = self.rule, self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
            if rule.correct == "count":
                state["count"] = torch.zeros_like(parameter)
        state["step"] += 1
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        arrived = self.ages.get(parameter)  # type: ignore[call-overload]
        ages, waits = (torch.ones_like(parameter),) * 2 if arrived is None else arrived
        at = ages.flatten().nonzero().squeeze(1)
        a, u = ages.flatten()[at], gradient.flatten()[at]
        mean, square = state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1)
        first, second = group["betas"]
        eager = rule.move in ("eager", "delay")
        if eager:
            mean *= first
        old, decay = mean[at], torch.pow(first, a)
        if eager:
            w = waits.flatten()[at]
            if rule.move == "eager":
                later = (1 - torch.pow(first, w)) / w / (1 - first)
            else:
                later = (1 - (w - 1) * (1 - first) / (2 * first)).clamp_min_(0.0)
            new = old + (1 - first) * later * u
            way = (1 - later) * u  # the moment moves with those of all elements
        elif rule.move == "mass":
            whole = first * old + (1 - first) * u
            way = (1 - decay) / (1 - first) * whole
            new = decay / first * whole
        else:
            kept = first * (1 - decay) / (1 - first)
            new = decay * old + (1 - decay) * u / a
            way = a * new if rule.move == "end" else kept * old + (a - kept) * u / a
        mean[at] = new
        fading = torch.pow(second, a)
        squares = fading * square[at] + (1 - fading) * u * u / a**rule.power
        square[at] = squares
        steps: Tensor | int = state["step"]
        if rule.correct == "count":
            state["count"].view(-1)[at] += 1
            steps = state["count"].view(-1)[at]
        root = (squares / (1 - second**steps)).sqrt_().add_(EPSILON)
        if eager:
            every = (square / (1 - second ** state["step"])).sqrt_().add_(EPSILON)
            every = mean.div(every)
            every[at] += way / root
            parameter.view(-1).sub_(every, alpha=group["lr"] / (1 - first ** state["step"]))
        else:
            parameter.view(-1)[at] -= group["lr"] * way / (1 - first**steps) / root
