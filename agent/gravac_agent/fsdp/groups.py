"""What FSDP2 reduces together: the parameters of one module, as flat rows, a row for each rank."""

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
    def numel(self) -> int:
        """Elements of a rank's piece, with padding."""
        return int(self.param.padded_sharded_param_size.numel())


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
    _buckets: dict[tuple[int, tuple[tuple[str, int], ...]], Bucket] = field(default_factory=dict)

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

    def bucket(self, numel: int, call: int, groups: int) -> Bucket:
        """Describe a gradient of this group.

        FSDP2 leaves out parameters without a gradient and does not say which. Where elements are missing, the rows
        count as a tensor of their own, so that they have a residual of their own.

        Args:
            numel: Elements of all rows.
            call: How often the group was reduced before in this backward. Each time has a residual of its own.
            groups: Groups of the model.
        """
        parts = [(one.name, one.numel) for one in self._trainable]
        if numel != self.numel:
            parts = [(f"{self.label or 'model'}{PART}{numel}", numel // self.ranks)]
        key = call, tuple(parts)
        if key not in self._buckets:
            suffix = f"{CALL}{call}" if call else ""
            names = tuple(piece_name(name + suffix, rank) for rank in range(self.ranks) for name, _ in parts)
            sizes = tuple(size for _, size in parts) * self.ranks
            self._buckets[key] = Bucket(self.number + call * groups, names, sizes)
        return self._buckets[key]
