"""A torch module and its data as a sum of losses over flat parameters, as L-SVRG needs it in a real trainer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gravac_lab.estimators.base import EstimatorSample


class ModuleSum:
    """The losses ``f_j(x) = loss(module with parameters x on inputs[j], targets[j])``, with trainable parameters flat.

    The module is called, never changed; pass the bare one, not its DDP wrapper. Samples must not influence each other:
    BatchNorm in training mode is refused.

    Args:
        module: The model; its trainable parameters are ``x``, in their order.
        loss: ``loss(outputs, targets)`` returns one loss per sample, shape ``(b,)``.
        inputs: One per sample, shape ``(m, …)``.
        targets: One per sample, shape ``(m, …)``.
        chunk: Samples at once in a full gradient.

    Raises:
        ValueError: There is BatchNorm in training mode, the lengths differ, or ``chunk`` is below 1.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        inputs: Tensor,
        targets: Tensor,
        chunk: int = 256,
    ) -> None:
        if len(inputs) != len(targets) or not len(inputs):
            raise ValueError(f"{len(inputs)} inputs and {len(targets)} targets; give one target per input")
        if chunk < 1:
            raise ValueError(f"chunk={chunk}: must be at least 1 sample")
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
                raise ValueError(
                    f"{name!r} is BatchNorm in training mode: its samples see each other; use GroupNorm"
                )
        self._module, self._loss = module, loss
        self._inputs, self._targets, self._chunk = inputs, targets, chunk

    @property
    def samples(self) -> int:
        """m, the number of samples."""
        return len(self._inputs)

    def gradient(self, x: Tensor, sample: EstimatorSample) -> Tensor:
        """Returns the gradient of the weighted mean loss of a sample, shape ``(d,)``."""
        weight = sample.weights / sample.weights.numel()
        return self._gradient(x, sample.indices, weight)

    def full_gradient(self, x: Tensor) -> Tensor:
        """Returns the gradient of the mean loss of all samples, shape ``(d,)``."""
        total = torch.zeros_like(x)
        for index in torch.arange(self.samples, dtype=torch.int64).split(self._chunk):
            total += self._gradient(x, index, torch.full((len(index),), 1.0 / self.samples, dtype=x.dtype))
        return total

    def _gradient(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        index = index.to(self._inputs.device)
        with torch.enable_grad():
            outputs = functional_call(self._module, self._unflatten(x), (self._inputs[index],))
            losses = self._loss(outputs, self._targets[index])
            if losses.shape != index.shape:
                raise ValueError(
                    f"loss has shape {tuple(losses.shape)}, expected {tuple(index.shape)}: one a sample"
                )
            (gradient,) = torch.autograd.grad((losses * weight.to(losses)).sum(), x)
        return gradient

    def _unflatten(self, x: Tensor) -> dict[str, Tensor]:
        shapes = {name: p.shape for name, p in self._module.named_parameters() if p.requires_grad}
        pieces = torch.split(x, [shape.numel() for shape in shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def flat_parameters(module: nn.Module) -> Tensor:
    """Returns the trainable parameters as one vector ``(d,)``, a copy: the ``x`` of ``ModuleSum``."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


def linear_term(module: nn.Module, direction: Tensor) -> Tensor:
    """Returns ``<direction, parameters>``: added to a loss, it adds ``direction`` to the gradient that autograd
    computes.

    So DDP's hooks, and a compressor in them, see the corrected gradient.

    Args:
        module: The model.
        direction: Shape ``(d,)``.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    pieces = torch.split(direction.detach(), [p.numel() for p in parameters])
    return torch.stack([(p * d.view(p.shape)).sum() for p, d in zip(parameters, pieces, strict=True)]).sum()
