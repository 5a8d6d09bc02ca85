"""Adam and AdamW of torch, and their step for gradients of which only some elements arrived.

Error feedback delivers what waited for several steps at once. Adam takes it for one gradient: after the wait m delays
most of it once more, and v decays meanwhile. Here an element that arrives makes up for the steps that it waited.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gravac import kernels

P = TypeVar("P", bound=Tensor)
Support = tuple[Tensor | None, float, bool]
"""Senders, share and ``nonzero`` of an ``AgedStep``."""
EXCLUDED = ("amsgrad", "capturable", "differentiable")
"""Settings of a group for which there is no step by age."""


@functools.lru_cache(maxsize=16)
def aged_rule(beta1: float, beta2: float, maximize: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what an element does when a part of what waits arrives: the ``table`` of ``kernels.step_aged``.

    What waits for w steps stands for the gradient u/w in each of them. Adam would by now have moved by most of them. So
    of u only the share that is still due goes into m, and the parameter moves by the rest at once. If k of N ranks
    send, a = w·k/N steps' worth arrives: in v that many gradients count as u²/a each, which holds for noise, whose
    squares add up. At w = a = 1 it is Adam.
    """
    ages = torch.arange(kernels.AGE_ROWS, dtype=torch.float64, device="cpu").clamp_(min=1.0)
    ages[kernels.FINE :].sub_(kernels.FINE).mul_(kernels.STEP).add_(kernels.FINE)  # those of whole steps
    steps = ages / kernels.STEP
    take1, keep2 = (1.0 - beta1**steps) / steps, beta2**steps
    from_u = take1 + 1.0 - take1 / (1.0 - beta1)  # at one step 1 - beta1, to the bit
    sign = -1.0 if maximize else 1.0
    halves = torch.stack([sign * take1, sign * from_u], 1), torch.stack([keep2, (1.0 - keep2) / steps], 1)
    return kernels.placed(torch.stack(halves).to(dtype), device)


def rates(group: Mapping[str, Any], decoupled: bool, steps: Tensor, skip: Tensor | None) -> Tensor:
    """Return what of a step does not depend on age: the ``rates`` of ``kernels.step_aged``, for each of ``steps``.

    The bias of the moments is corrected by time, as in Adam.
    """
    beta1, beta2 = (float(beta) for beta in group["betas"])
    time, lr = steps.double(), group["lr"]
    if isinstance(lr, Tensor):
        lr = lr.to(time.device)
    root = (1.0 - beta2**time).sqrt()
    l2 = torch.zeros_like(time)
    decay = torch.ones_like(time)
    if decoupled:
        decay -= lr * group["weight_decay"]
    else:
        l2 += -group["weight_decay"] if group["maximize"] else group["weight_decay"]
    skips = torch.zeros_like(time) if skip is None else skip.double().expand_as(time)
    return torch.stack([lr * root / (1.0 - beta1**time), group["eps"] * root, decay, l2, skips], 1)


class _Aged(torch.optim.Optimizer):
    """The step for parameters of which some elements did not arrive, before torch's own for all others."""

    _supports: Mapping[Tensor, Support | None] = {}
    _growth: Mapping[Tensor, float] = {}
    """What the ages of these parameters are still to be multiplied by, in their next step."""
    _compiled = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle an adopted optimizer as the plain one that it will be again: nothing would undo a copy."""
        if "_adopted" not in vars(self):
            return super().__reduce_ex__(protocol)
        return object.__new__, (vars(self)["_adopted"][1],), self.__getstate__()

    def arrived(self, supports: Mapping[P, Tensor | None], ranks: int = 1, *, nonzero: bool = False) -> None:
        """Say which elements of the gradients have arrived since the last step; ``gravac.Agent`` does it.

        It replaces what was said of these parameters, and holds for one step. Without a call the step is torch's own.

        Args:
            supports: For each parameter of whose gradient only a part arrived, which: bool, a mask of the parameter's
                shape; int32 or int64, positions in the flat gradient; or uint8, of the parameter's shape, how many
                ranks sent each element. Masks and counts are read in the step and not copied. All ranks sent all of the
                parameters that are not named, or have None.
            ranks: How many ranks there are, for counts.
            nonzero: Of the parameters with a support, the elements whose gradient is not 0 have arrived, and no others.
                Gradients must be final. The support only says from how many ranks: one that it does not count comes
                from all of them, and so do all of an empty one (uint8).

        Raises:
            ValueError: A parameter is not one of the optimizer's, or has no gradient that could tell, a support does
                not fit it, its group has a setting for which there is no step by age, or ``step`` is compiled.
        """
        groups = {param: group for group in self.param_groups for param in group["params"]}
        found: dict[Tensor, Support | None] = {}
        for param, support in supports.items():
            if param not in groups:
                raise ValueError(
                    f"supports= names a tensor of shape {tuple(param.shape)} that is no parameter of this optimizer"
                )
            if support is not None:
                self._check(groups[param])
                if param.is_complex():
                    raise ValueError(
                        f"a parameter of {param.dtype}: there is no step by age for complex numbers"
                    )
                if nonzero and param.grad is None:
                    raise ValueError(
                        f"nonzero=True before a parameter of shape {tuple(param.shape)} has a gradient: call arrived() "
                        "after backward, right before step()"
                    )
                counted = not nonzero or support.numel() > 0 or support.dtype != torch.uint8
                senders, of = _senders(_local(param), support, ranks) if counted else (None, 1)
                # A step of all elements with no age is torch's to the bit. Nothing is read of a device for that.
                old = "age" in self.state.get(param, ()) or kernels.on_device(_local(param))
                whole = not old and _came_whole(param.grad, senders, of, nonzero)
                found[param] = None if whole else (senders, 1.0 / of, nonzero)
        self._supports = {**self._supports, **found}

    def scaled(self, factor: float, params: Iterable[Tensor]) -> None:
        """Say that what waits of these gradients was multiplied by a factor; ``gravac.Agent`` does it.

        It does so when the learning rate changes, by old / new. Squares of what waits are ``factor``² as large then,
        so it counts as ``factor``² as many steps' worth of gradients.

        Args:
            factor: Above 0.
            params: Parameters of this optimizer. Those of which nothing waits are left out.

        Raises:
            ValueError: The factor is not finite or not above 0.
        """
        if not 0.0 < factor < float("inf"):
            raise ValueError(
                f"factor={factor} must be above 0 and finite: it is the old learning rate / the new one"
            )
        growth = dict(self._growth)
        for param in params:
            if "age" in self.state.get(param, ()):
                growth[param] = growth.get(param, 1.0) * factor * factor
        self._growth = growth

    def _take_growth(self, param: Tensor) -> float:
        return cast(dict[Tensor, float], self._growth).pop(param, 1.0) if self._growth else 1.0

    def _check(self, group: Mapping[str, Any]) -> None:
        for name in EXCLUDED:
            if group.get(name):
                raise ValueError(
                    f"{name}=True: there is no step by age with it. Make the optimizer without it, or send all "
                    "elements of each gradient"
                )
        if self._compiled:  # the compiled step would do the same whatever arrived
            raise ValueError(
                "step() is compiled: there is no step by age then. Call the optimizer's own step"
            )

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        """Hand out a group's parameters for torch's step, as torch's method does, without those it has stepped here."""
        self._compiled |= torch.compiler.is_compiling()
        has_complex = super()._init_group(group, *lists)  # type: ignore[misc]  # torch's Adam has it
        supports = self._supports
        if group is self.param_groups[-1]:
            self._supports = {}
        params = lists[0]
        aged = [supports.get(param) is not None or "age" in self.state[param] for param in params]
        if any(aged):
            self._check(group)
            self._step_aged(
                group, {param: supports.get(param) for param, old in zip(params, aged, strict=True) if old}
            )
            for one in lists:
                if isinstance(one, list) and one:
                    one[:] = [each for each, old in zip(one, aged, strict=True) if not old]
        return has_complex

    def _step_aged(self, group: dict[str, Any], supports: Mapping[Tensor, Support | None]) -> None:
        decoupled = isinstance(self, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
        beta1, beta2 = (float(beta) for beta in group["betas"])
        # A GradScaler leaves these to optimizers with ``fused``.
        scale, skip = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if skip is not None and skip.is_cpu:
            if skip:
                return
            skip = None
        by_kind: dict[tuple[torch.device, torch.device, torch.dtype], list[Tensor]] = {}
        for param in supports:
            # The step's number is on the host, or with ``fused`` beside the parameter.
            at = self.state[param]["step"].device
            dtype = torch.float64 if param.dtype == torch.float64 else torch.float32
            by_kind.setdefault((at, param.device, dtype), []).append(param)
        for (at, device, dtype), params in by_kind.items():
            steps = [self.state[param]["step"] for param in params]
            torch._foreach_add_(steps, 1)
            if skip is not None:
                skip = skip.to(at, non_blocking=True).reshape(())
            numbers = rates(group, decoupled, torch.stack(steps), skip).to(dtype)
            numbers = numbers if at == device else kernels.placed(numbers, device)
            if skip is not None:
                torch._foreach_sub_(steps, skip)
            table = aged_rule(beta1, beta2, group["maximize"], dtype, device)
            if scale is not None:
                grads = [_local(cast(Tensor, param.grad)) for param in params]
                torch._foreach_div_(grads, scale.to(device, non_blocking=True).reshape(()))
            aged = []
            for param in params:
                state = self.state[param]
                senders, share, nonzero = supports[param] or (None, 1.0, False)
                if "age" not in state:
                    state["age"] = torch.full_like(param, kernels.STEP, dtype=torch.int16)
                aged.append(
                    kernels.AgedStep(
                        _local(param),
                        _local(cast(Tensor, param.grad)),
                        _local(state["exp_avg"]),
                        _local(state["exp_avg_sq"]),
                        _local(state["age"]),
                        senders,
                        share,
                        self._take_growth(param),
                        nonzero,
                    )
                )
            kernels.step_aged(aged, table, numbers, beta1)
            if skip is None:
                for param in params:
                    if supports[param] is None:
                        del self.state[param]["age"]  # all are one step old now, so torch's step takes over

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does."""
        for param in list(self._growth):
            age = _local(self.state[param]["age"])
            age.copy_(kernels.grown(age, self._take_growth(param)))
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, also that of torch's class."""
        super().load_state_dict(state_dict)
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, param in zip(saved, own, strict=True):
            found = state_dict["state"].get(number, {}).get("age")
            if (
                found is not None and found.dtype == torch.int16
            ):  # torch has rounded it to the parameter's dtype
                self.state[param]["age"].copy_(found.clamp(min=kernels.STEP))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state in. Loading makes ages floats, as it does all of a state."""
        super().__setstate__(state)
        self._supports, self._growth = {}, {}
        _read_ages(self)


class Adam(_Aged, torch.optim.Adam):
    """``torch.optim.Adam`` that makes up for the steps in which an element of the gradient did not arrive.

    Arguments, defaults and errors are torch's. While all elements arrive, and without an agent, a step is torch's own,
    with ``foreach``, ``fused`` or neither, and the state has torch's entries.

    Where :meth:`arrived` names a part of a gradient, elements of this part are stepped by their age, the steps that
    their gradient waits, as the mean over ranks: where k of N ranks send an element, k/N of its age arrives. The others
    go on by their first moment; their second stays. The L2 penalty of ``weight_decay`` is a part of the gradient, so it
    waits like the rest. This step is one pass in float32, whatever ``foreach`` and ``fused`` are; parameters of 16 bits
    are rounded at its end.

    An age counts steps' worth of noise of today's size. Where the learning rate changes and what waits is multiplied
    by f = old / new, :meth:`scaled` multiplies ages by f².

    The state of such a parameter has ``age`` too, in 32nds of a step (int16, from 32 on, up to 1,023 steps), until
    all of its elements arrive from all ranks in one step. torch's class loads this state and leaves ``age`` unused,
    as a tensor of the parameter's dtype; a state of torch's class begins here with all elements one step old. So
    does one from ``torch.distributed.checkpoint`` whose ages are loaded into an optimizer that has none yet. A step
    that a GradScaler skips changes no age.

    With ``amsgrad``, ``capturable``, ``differentiable``, complex parameters or a compiled ``step``, :meth:`arrived`
    takes no supports. A learning rate on a device is read by the host unless ``fused`` is set.
    """


class AdamW(_Aged, torch.optim.AdamW):
    """``torch.optim.AdamW`` that makes up for the steps in which an element of the gradient did not arrive.

    It does what :class:`Adam` does, but the weights of all elements decay in every step, also of those that did not
    arrive.
    """


PLAIN: dict[type[torch.optim.Optimizer], type[_Aged]] = {torch.optim.Adam: Adam, torch.optim.AdamW: AdamW}
"""What steps late elements by their age, by the class that it is otherwise."""


def adopt(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Make a plain ``torch.optim.Adam`` or ``AdamW`` one of these classes, in place: it keeps its groups and state.

    Args:
        optimizer: It may be adopted several times, and stays so until each was undone. One of these classes stays it.

    Returns:
        What undoes it, and drops its ages. Further calls do nothing.
    """
    own = vars(optimizer)
    if type(optimizer) in PLAIN:
        own["_adopted"] = 0, type(optimizer)
        optimizer.__class__ = PLAIN[type(optimizer)]
        _read_ages(optimizer)  # of a checkpoint that was loaded before
    elif "_adopted" not in own:
        return lambda: None
    own["_adopted"] = own["_adopted"][0] + 1, own["_adopted"][1]
    left = [True]

    def undo() -> None:
        if not left:
            return
        left.clear()
        users, plain = own["_adopted"]
        own["_adopted"] = users - 1, plain
        if users > 1:
            return
        for name in ("_adopted", "_supports", "_growth", "_compiled"):
            own.pop(name, None)
        for state in optimizer.state.values():
            state.pop("age", None)
        optimizer.__class__ = plain

    return undo


def excluded(optimizer: torch.optim.Optimizer) -> str:
    """Return a setting of the optimizer with which there is no step by age; empty without one."""
    return next((name for name in EXCLUDED if any(group.get(name) for group in optimizer.param_groups)), "")


def _read_ages(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        if "age" in state:
            state["age"] = state["age"].clamp(kernels.STEP, kernels.OLDEST).to(torch.int16)


def _local(tensor: Tensor) -> Tensor:
    """Return a tensor, of a sharded one this rank's part."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def _came_whole(grad: Tensor | None, senders: Tensor | None, of: int, nonzero: bool) -> bool:
    """Return whether all of a gradient arrived from all ranks."""
    if nonzero and (_local(cast(Tensor, grad)) == 0).any():
        return False
    return senders is None or bool(((senders == of) | ((senders == 0) if nonzero else False)).all())


def _senders(param: Tensor, support: Tensor, ranks: int) -> tuple[Tensor, int]:
    """Return how many ranks sent each element, bool or uint8 of the parameter's shape, and of how many ranks."""
    if support.device != param.device:
        raise ValueError(
            f"a support is on {support.device} and its parameter on {param.device}: move it there"
        )
    if support.dtype in (torch.bool, torch.uint8):
        what = "a mask has" if support.dtype == torch.bool else "counts have"
        if support.numel() != param.numel():
            raise ValueError(
                f"{what} shape {tuple(support.shape)} and the parameter {tuple(param.shape)}: one "
                f"{str(support.dtype)[6:]} is needed for each element"
            )
        if support.dtype == torch.bool:
            return support.view(param.shape), 1
        most = int(support.max()) if support.is_cpu and support.numel() else 0
        if not max(1, most) <= ranks <= 255:
            raise ValueError(
                f"ranks={ranks} with counts up to {most}: ranks= must be how many there are, at most 255"
            )
        return support.view(param.shape), ranks
    if support.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"a support is a tensor of {support.dtype}: give a mask (bool), positions (int32, int64) or counts (uint8)"
        )
    if param.is_cpu and support.numel() and not 0 <= int(support.min()) <= int(support.max()) < param.numel():
        raise ValueError(
            f"positions reach from {int(support.min())} to {int(support.max())}, outside 0..{param.numel() - 1}"
        )
    mask = torch.zeros(param.numel(), dtype=torch.bool, device=param.device)
    mask[support.long()] = True
    return mask.view(param.shape), 1
