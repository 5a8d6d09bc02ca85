"""A step of Adam in which only some elements of the gradient arrived; see ``gravac.optim``."""

import torch
from torch import Tensor

from gravac.kernels import backend, reference

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def step_aged(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    age: Tensor,
    arrived: Tensor | None,
    table: Tensor,
    rates: Tensor,
) -> None:
    """Update parameters, moments and ages in place, in one pass.

    With the row (keep₁, take₁, keep₂, take₂, from m, from u, steps) of an element's age, and the rates (rate, ε, decay,
    L₂, skip), an element that arrived gets

        u = g + L₂·steps·p,  d = from m·m + from u·u,
        m ← keep₁·m + take₁·u,  v ← keep₂·v + take₂·u²,  p ← decay·p − rate·d / (√v + ε)

    and age 1. Another one is one step older, up to the last row, and goes by row 0: d = from m·m, m ← keep₁·m, and v
    stays. Nothing changes if ``skip`` is not 0.
    All is computed in float32, for parameters of float64 in float64.

    Args:
        param: Any floating dtype and shape, as have the gradient and the moments.
        grad: The gradient.
        exp_avg: First moment m.
        exp_avg_sq: Second moment v.
        age: int8, from 1 on: steps since the element arrived.
        arrived: bool, the elements of the gradient that arrived; None: all of them.
        table: Shape ``(1 + largest age, 7)``, contiguous, on the parameters' device, of the dtype to compute in.
        rates: Shape ``(5,)``, likewise.
    """
    floats = [param.detach(), grad.detach(), exp_avg, exp_avg_sq]
    others = [age] if arrived is None else [age, arrived]
    if not param.is_contiguous():  # as in the format channels_last: in the order of memory
        order = sorted(range(param.dim()), key=lambda axis: -param.stride()[axis])
        floats, others = ([each.permute(order) for each in group] for group in (floats, others))
    alike = param.dtype in _FLOATS and all(each.dtype == param.dtype for each in floats)
    if alike and backend.on_gpu(*floats, *others):
        from gravac.kernels.cuda.adam import step_aged as on_gpu

        on_gpu(floats, others, table, rates)
    elif alike and backend.compiled(*floats, *others):
        _compiled(floats, others, table, rates)
    else:
        _plain([*floats, *others], table, rates)


def _compiled(floats: list[Tensor], others: list[Tensor], table: Tensor, rates: Tensor) -> None:
    numbers, cells = (table.data_ptr(), rates.data_ptr()), table.numel()

    def run(floats: list[Tensor], others: list[Tensor]) -> None:
        n, some = floats[0].numel(), 0 if len(others) == 1 else others[1].numel()
        mask = others[-1].data_ptr()  # not read if everything arrived
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


def _plain(tensors: list[Tensor], table: Tensor, rates: Tensor) -> None:
    if tensors[0].device.type != "cpu" or not all(each.is_contiguous() for each in tensors):
        _piece(*tensors, table=table, rates=rates)
        return
    flat, size = [each.view(-1) for each in tensors], reference.AT_ONCE
    for begin in range(0, flat[0].numel(), size):
        _piece(*[each[begin : begin + size] for each in flat], table=table, rates=rates)


def _piece(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    age: Tensor,
    arrived: Tensor | None = None,
    *,
    table: Tensor,
    rates: Tensor,
) -> None:
    keep1, take1, keep2, take2, from_m, from_u, steps = table[age.int()].unbind(-1)
    rate, eps, decay, l2, skip = rates.unbind()
    come = torch.ones_like(age, dtype=torch.bool) if arrived is None else arrived
    p, m, v = (each.to(table.dtype) for each in (param, exp_avg, exp_avg_sq))
    u = grad.to(table.dtype) + steps * l2 * p
    way = torch.where(come, m * from_m + u * from_u, m * table[0, 4])
    m = torch.where(come, m * keep1 + u * take1, m * table[0, 0])
    v = torch.where(come, v * keep2 + u * take2 * u, v)
    root = v.double().sqrt().to(v.dtype)  # torch's own for float32 is not rounded correctly on a CPU
    p = p * decay - way * rate / (root + eps)
    older = torch.where(come, 1, (age + 1).clamp(max=table.shape[0] - 1))
    for own, fresh in ((param, p), (exp_avg, m), (exp_avg_sq, v), (age, older)):
        own.copy_(torch.where(skip == 0.0, fresh.to(own.dtype), own))
