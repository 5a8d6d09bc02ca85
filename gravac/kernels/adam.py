"""A step of Adam in which only some elements of the gradient arrived; see ``gravac.optim``."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.reference import FINE, HALF_STEP, OLDEST, STEP, TO_STEPS

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class AgedStep:
    """A parameter in a step: what ``step_aged`` is given of it.

    Attributes:
        param: Parameter, of any floating dtype and shape, which the gradient and the moments have too.
        grad: Gradient.
        exp_avg: First moment m.
        exp_avg_sq: Second moment v.
        age: Steps' worth of the gradient that will have waited: int16, from ``STEP`` on.
        senders: How many ranks sent each element, bool or uint8; None: one.
        share: Part of an element that comes with one rank.
        growth: Factor of ``grown``.
        nonzero: Whether the elements whose gradient is not 0 have arrived, and no others. Of those that nobody sent,
            all has.
    """

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    age: Tensor
    senders: Tensor | None = None
    share: float = 1.0
    growth: float = 1.0
    nonzero: bool = False

    def in_order(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameter, gradient and moments, then ages and senders; in the order of memory, as channels_last."""
        floats = [self.param.detach(), self.grad.detach(), self.exp_avg, self.exp_avg_sq]
        others = [self.age] if self.senders is None else [self.age, self.senders]
        if self.param.is_contiguous():
            return floats, others
        order = sorted(range(self.param.dim()), key=lambda axis: -self.param.stride()[axis])
        return [each.permute(order) for each in floats], [each.permute(order) for each in others]


def step_aged(steps: Sequence[AgedStep], table: Tensor, rates: Tensor, beta1: float) -> None:
    """Update parameters, moments and ages in place, in one pass; on a GPU all parameters of a dtype in one launch.

    Of an element of age w that k ranks sent, w·k·share has arrived, which is a. With (take₁, from u) of row w of the
    first half of the table, (keep₂, take₂) of row a of the second, and the rates (rate, ε, decay, L₂, skip), it gets

        u = g + L₂·a·p,  d = β₁·m + from u·u,
        m ← β₁·m + take₁·u,  v ← keep₂·v + take₂·u²,  p ← decay·p − rate·d / (√v + ε)

    and is w − a + 1 step old. One that nobody sent goes on by d = β₁·m, m ← β₁·m; its v stays, and it ages by a step.
    Before all that, what waited before this step becomes ``growth`` times as old. Nothing else changes if ``skip`` is
    not 0. Ages count in 32nds of a step, rounded; beyond ``FINE`` a row serves a whole step. All else is computed in
    float32, for parameters of float64 in float64.

    Args:
        steps: The parameters, all on one device.
        table: Shape ``(2, AGE_ROWS, 2)``, contiguous, on the parameters' device, of the dtype to compute in.
        rates: Shape ``(len(steps), 5)``, likewise.
        beta1: Decay of the first moment.
    """
    launches: dict[tuple[torch.dtype, bool], list[tuple[int, list[Tensor], list[Tensor], AgedStep]]] = {}
    for row, (step, own) in enumerate(zip(steps, rates.unbind(), strict=True)):
        floats, others = step.in_order()
        dtype = step.param.dtype
        alike = dtype in _FLOATS and all(each.dtype == dtype for each in floats)
        numbers = table, own, beta1, step.share, step.growth, step.nonzero
        if alike and backend.on_gpu(*floats, *others):
            launches.setdefault((dtype, step.nonzero), []).append((row, floats, others, step))
        elif alike and backend.compiled(*floats, *others):
            _compiled(floats, others, *numbers)
        else:
            _plain([*floats, *others], *numbers)
    if launches:
        from gravac.kernels.cuda.adam import step_aged as on_gpu

        for (_, nonzero), together in launches.items():
            on_gpu(together, table, rates, beta1, nonzero)


def grown(age: Tensor, growth: float) -> Tensor:
    """Return ages of which all but this step is multiplied by ``growth``, rounded, at most ``OLDEST``; int32."""
    if growth == 1.0:
        return age.int()
    return ((age.float() - STEP) * growth + 0.5).clamp(max=OLDEST - STEP).int() + STEP


def _compiled(
    floats: list[Tensor],
    others: list[Tensor],
    table: Tensor,
    rates: Tensor,
    beta1: float,
    share: float,
    growth: float,
    nonzero: bool,
) -> None:
    numbers, cells = (table.data_ptr(), rates.data_ptr(), beta1, share, growth, nonzero), table.numel()

    def run(floats: list[Tensor], others: list[Tensor]) -> None:
        n, some = floats[0].numel(), 0 if len(others) == 1 else others[1].numel()
        mask = others[-1].data_ptr()  # not read if there are no senders
        backend.host.step_aged(
            *(each.data_ptr() for each in floats), others[0].data_ptr(), mask, *numbers, cells, n, some
        )

    if floats[0].dtype == torch.float32:
        run(floats, others)
        return
    flat, rest = ([each.view(-1) for each in group] for group in (floats, others))
    size = reference.AT_ONCE
    for begin in range(0, flat[0].numel(), size):
        part = slice(begin, begin + size)
        wide = [each[part].float() for each in flat]
        run(wide, [each[part] for each in rest])
        for place in (0, 2, 3):
            flat[place][part] = wide[place]


def _plain(tensors: list[Tensor], *numbers: Tensor | float) -> None:
    if tensors[0].device.type != "cpu" or not all(each.is_contiguous() for each in tensors):
        _piece(tensors, *numbers)  # type: ignore[arg-type]  # as they are given
        return
    flat, size = [each.view(-1) for each in tensors], reference.AT_ONCE
    for begin in range(0, flat[0].numel(), size):
        _piece([each[begin : begin + size] for each in flat], *numbers)  # type: ignore[arg-type]


def _piece(
    tensors: list[Tensor],
    table: Tensor,
    rates: Tensor,
    beta1: float,
    share: float,
    growth: float,
    nonzero: bool,
) -> None:
    param, grad, exp_avg, exp_avg_sq, age, *rest = tensors
    rate, eps, decay, l2, skip = rates.unbind()
    sent = torch.ones_like(age, dtype=torch.float32) if not rest else rest[0].float()
    came, part = sent > 0, sent * share
    if nonzero:
        came, part = grad != 0, torch.where(grad != 0, torch.where(came, part, 1.0), 0.0)
    wait = grown(age, growth)
    a = (wait.float() * part + 0.5).int()
    take1, from_u = table[0, _row(wait)].unbind(-1)
    keep2, take2 = table[1, _row(a)].unbind(-1)
    p, m, v = (each.to(table.dtype) for each in (param, exp_avg, exp_avg_sq))
    u = grad.to(table.dtype) + a.to(table.dtype) * (1 / STEP) * l2 * p
    kept = m * beta1
    way = torch.where(came, kept + u * from_u, kept)
    m = torch.where(came, kept + u * take1, kept)
    v = torch.where(came, v * keep2 + u * take2 * u, v)
    root = v.double().sqrt().to(v.dtype)  # torch's own for float32 is not rounded correctly on a CPU
    p = p * decay - way * rate / (root + eps)
    older = (wait - a).clamp(max=OLDEST - STEP) + STEP
    for own, fresh, skipped in (
        *((param, p, param), (exp_avg, m, exp_avg), (exp_avg_sq, v, exp_avg_sq)),
        (age, older, wait.to(age.dtype)),
    ):
        own.copy_(torch.where(skip == 0.0, fresh.to(own.dtype), skipped))


def _row(age: Tensor) -> Tensor:
    return torch.minimum(age, FINE + ((age - FINE + HALF_STEP) >> TO_STEPS))
