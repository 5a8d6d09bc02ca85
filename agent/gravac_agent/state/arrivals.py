"""Tells an optimizer of ``gravac.optim`` which elements of its gradients arrived."""

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from gravac import optim
from gravac_agent.exchange.channels import Channels
from gravac_agent.fsdp.model import DataParallel, ShardedModel, named_parameters


class Arrivals:
    """Looks at the gradients before each step of the optimizer: an element that is 0 did not arrive.

    It looks there and not only at what was decoded. So nothing that the trainer added later is left out, and of several
    exchanges the last one counts, as DDP writes each over the one before. Gradients are equal on all ranks, hence ages.
    Of a gather it is known how many ranks sent an element, and of ``owners`` half of what waits arrives. Elsewhere all
    of it does: with a support that the ranks share, and of what the trainer added. All of a bucket arrives that was
    sent densely or quantized.

    Args:
        optimizer: The optimizer, without wrappers.
        module: Has the parameters of the buckets.
        channels: They know what was sent of each bucket.
    """

    def __init__(self, optimizer: optim.Adam | optim.AdamW, module: DataParallel, channels: Channels) -> None:
        self._optimizer, self._module, self._channels = optimizer, module, channels
        channels.counts_senders = channels.aggregator.communicator.size > 1
        self._named: dict[str, nn.Parameter] = {}
        self._told = self._off = False

    @staticmethod
    def of(optimizer: Any, module: DataParallel, channels: Channels) -> "Arrivals | None":
        """Return what tells the optimizer, without wrappers; None if it does not want to know."""
        known = isinstance(optimizer, optim.Adam | optim.AdamW)
        return Arrivals(optimizer, module, channels) if known else None

    @torch.no_grad()
    def before_step(self) -> None:
        """Tell it. Call it right before the optimizer steps, when its gradients are final."""
        self._told = True
        if self._off:
            return
        stepped = {param for group in self._optimizer.param_groups for param in group["params"]}
        partial: dict[nn.Parameter, bool] = {}
        counts: dict[nn.Parameter, list[tuple[Tensor | None, int]]] = {}
        for channel in self._channels:
            for name, senders in channel.parts():
                param = self._parameter(name)
                if param.grad is not None and param in stepped:
                    # FSDP2 adds up the gradients of a module that is used several times.
                    partial[param] = channel.partial and partial.get(param, True)
                    counts.setdefault(param, []).append((senders, channel.of))
        supports: dict[int, dict[nn.Parameter, Tensor | None]] = {}
        for param, some in partial.items():
            support, of = _support(param, counts[param]) if some else (None, 1)
            supports.setdefault(of, {})[param] = support
        try:
            for of, found in supports.items():
                self._optimizer.arrived(found, of, nonzero=True)
        except ValueError as error:  # on all ranks: it follows from the optimizer and the plan
            self._turn_off(str(error))

    def after_step(self) -> None:
        """Call it right after the optimizer stepped."""
        if not (self._told or self._off):
            self._turn_off("the optimizer's closure does not call agent.finish_backward()")
        self._told = False

    def _turn_off(self, why: str) -> None:
        self._off = True
        kind = type(self._optimizer).__name__
        self._channels.note(
            f"{kind} takes every element of its gradients as arrived, as torch's {kind} does: {why}"
        )

    def _parameter(self, name: str) -> nn.Parameter:
        if name not in self._named:
            module = self._module
            for own, param in named_parameters(module):
                pieces = module.pieces(own) if isinstance(module, ShardedModel) else (own,)
                self._named.update(dict.fromkeys(pieces, param))
        return self._named[name]


def _support(param: nn.Parameter, counts: list[tuple[Tensor | None, int]]) -> tuple[Tensor, int]:
    """Return from how many senders each element came, uint8, empty if all did from all; and of how many."""
    of = counts[0][1]
    known = [_as_in(_local(param), one) for one, own in counts if one is not None and own == of]
    if len(known) < len(counts):
        return _uncounted(param.device), 1
    found = known[0]
    for one in known[1:]:
        torch.maximum(found, one, out=found)
    return found, of


@cache
def _uncounted(device: torch.device) -> Tensor:
    """Return the support that counts no element."""
    return torch.empty(0, dtype=torch.uint8, device=device)


def _as_in(param: Tensor, flat: Tensor) -> Tensor:
    """Return a piece of a flat gradient as a tensor that lies as the parameter does; it may have padding at its end."""
    flat = flat[: param.numel()]
    dense = torch.empty_like(param, device="meta").stride() == param.stride()
    return flat.as_strided(param.shape, param.stride()) if dense else flat.view(param.shape)


def _local(tensor: Tensor) -> Tensor:
    """Return a tensor, of a sharded one this rank's part."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor
