"""Kinds of gradients besides dense real ones.

Complex: DDP hands them to its hook as real numbers, each a pair, and so they are compressed. Sparse: no codec takes
them, they are sent as plain DDP sends them.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from gravac.kernels import energy


def real_shape(parameter: Tensor) -> tuple[int, ...]:
    """Shape of a parameter's gradient in a bucket of DDP."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def norm_sq(gradient: Tensor) -> float:
    """Squared L2 norm of a flat or a sparse gradient."""
    return energy(gradient.coalesce().values().reshape(-1) if gradient.is_sparse else gradient)


def sparse_parameters(module: nn.Module) -> Iterator[str]:
    """Names of the trainable parameters that get sparse gradients, by the test that DDP makes."""
    for prefix, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            yield f"{prefix}.weight" if prefix else "weight"
