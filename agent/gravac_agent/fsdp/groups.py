"""What FSDP2 reduces together: the parameters of one module, as flat rows, a row for each rank."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gravac.memories import Bucket

PIECE = "@"
"""Between a parameter's name and the rank that owns the piece."""
CALL = "~"
"""Before the number of a further call of the same module in one backward."""
PART = "#"
"""Between a module's name and the elements of a gradient that lacks some of its parameters."""


def piece_name(parameter: str, rank: int) -> str:
    """Return the name that the error memory has for the piece of a parameter that belongs to a rank."""
    return f"{parameter}{PIECE}{rank}"


@dataclass(frozen=True, slots=True)
class _Sharded:
    name: str
    param: Any  # torch's FSDPParam

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a rank's piece, with padding."""
        return tuple(self.param.padded_sharded_param_size)

    @property
    def numel(self) -> int:
        """Elements of a rank's piece, with padding."""
        return math.prod(self.shape)


@dataclass(eq=False, slots=True)
class ShardedGroup:
    """The parameters of one FSDP module.

    Attributes:
        number: Its place among the FSDP modules of the model.
        label: Name of the module.
        group: torch's own object, ``FSDPParamGroup``.
    """

    number: int
    label: str
    group: Any
    _params: tuple[_Sharded, ...]
    _buckets: dict[tuple[Any, ...], Bucket] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, label: str, group: Any, modules: dict[nn.Module, str]) -> "ShardedGroup":
        """Describe a group.

        Args:
            number: Its place among the groups of the model.
            label: Name of the FSDP module.
            group: torch's ``FSDPParamGroup``.
            modules: Names of the model's modules.
        """
        params = []
        for param in group.fsdp_params:
            info = param._module_info
            prefix = modules[info.module]
            params.append(_Sharded(f"{prefix}.{info.param_name}" if prefix else info.param_name, param))
        return cls(number, label, group, tuple(params))

    @property
    def ranks(self) -> int:
        """Ranks that the parameters are sharded over."""
        return int(self.group.mesh_info.shard_mesh_size)

    @property
    def by_rows(self) -> bool:
        """Whether all its parameters are sharded along their first dimension."""
        return all(one.param.fsdp_placement.dim == 0 for one in self._params)

    @property
    def numel(self) -> int:
        """Elements of the gradient of all its trainable parameters, with padding."""
        return self.ranks * sum(one.numel for one in self._trainable)

    @property
    def _trainable(self) -> list[_Sharded]:
        return [one for one in self._params if one.param.sharded_param.requires_grad]

    @property
    def reduce_scatter(self) -> Any:
        """What the group calls to reduce its gradients."""
        return self.group._reduce_scatter_comm

    @reduce_scatter.setter
    def reduce_scatter(self, comm: Any) -> None:
        self.group._reduce_scatter_comm = comm  # FSDPModule.set_custom_reduce_scatter does the same

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield its sharded parameters."""
        for one in self._params:
            yield one.name, one.param.sharded_param

    @property
    def all_reduce_hook(self) -> Any:
        """What the group calls after its reduce-scatter; None: nothing."""
        return self.group._all_reduce_hook

    @all_reduce_hook.setter
    def all_reduce_hook(self, hook: Any) -> None:
        self.group._all_reduce_hook = hook  # FSDPModule.set_all_reduce_hook does the same

    @property
    def all_reduces(self) -> bool:
        """Whether the next backward ends in an all-reduce, as ``set_requires_all_reduce`` says."""
        return bool(self.group.all_reduce_grads)

    @property
    def divide_factor(self) -> float | None:
        """What ``set_gradient_divide_factor`` divides the sum over ranks by; None: their number."""
        factor: float | None = self.group.gradient_divide_factor
        return factor

    @property
    def sums_only(self) -> bool:
        """Whether ``set_force_sum_reduction_for_comms`` divides after all collectives instead of in them."""
        return bool(self.group.force_sum_reduction_for_comms)

    def bucket(self, numel: int, call: int, groups: int, rows: int | None = None) -> Bucket:
        """Describe a gradient of this group.

        FSDP2 leaves out parameters without a gradient and does not say which. Where elements are missing, the rows
        count as a tensor of their own, so that they have a residual of their own.

        Args:
            numel: Its elements.
            call: How often the group was reduced before in this backward. Each time has a residual of its own.
            groups: Groups of the model.
            rows: Ranks that it has a row for, whose pieces have names of their own; None: it is a rank's shard, and
                its pieces have the names of their parameters.
        """
        parts = [(one.name, one.numel, one.shape) for one in self._trainable]
        if numel != sum(size for _, size, _ in parts) * (rows or 1):
            size = numel // (rows or 1)
            parts = [(f"{self.label or 'model'}{PART}{numel}", size, (size,))]
        key = call, tuple(parts)
        if key not in self._buckets:
            suffix = f"{CALL}{call}" if call else ""
            names = tuple(name + suffix for name, _, _ in parts)
            if rows is not None:
                names = tuple(piece_name(name, rank) for rank in range(rows) for name in names)
            self._buckets[key] = Bucket(
                self.number + call * groups,
                names,
                tuple(size for _, size, _ in parts) * (rows or 1),
                tuple(shape for _, _, shape in parts) if rows is None else (),
            )
        return self._buckets[key]
