"""The parameters of one FSDP module, which FSDP2 reduces together as flat rows, a row for each rank."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gravac.memories import Bucket

PIECE = "@"
"""Separates a parameter's name from the rank that owns the piece."""
CALL = "~"
"""Precedes the number of a further call of the same module in one backward."""
_WHOLE = "_gravac_whole"
"""Attribute of a mesh without its replicas: the mesh with them."""


def piece_name(parameter: str, rank: int) -> str:
    """Return the name that the error memory has for the piece of a parameter that belongs to a rank."""
    return f"{parameter}{PIECE}{rank}"


def first_calls(residual: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a residual in which that of further calls is added to that of the first."""
    found: dict[str, Tensor] = {}
    for name, value in residual.items():
        base, _, call = name.partition(CALL)
        first = base + "".join(call.partition(PIECE)[1:])
        found[first] = found[first] + value if first in found else value
    return found


@dataclass(frozen=True, slots=True)
class _Sharded:
    name: str
    param: Any  # torch's FSDPParam

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a rank's piece, padding included."""
        return tuple(self.param.padded_sharded_param_size)

    @property
    def numel(self) -> int:
        """Elements of a rank's piece, padding included."""
        return math.prod(self.shape)

    def has_gradient(self, group: Any) -> bool:
        """Return whether its group is about to reduce a gradient of it. This is FSDP2's own test."""
        whole = getattr(self.param, "_unsharded_param", None)
        if whole is None:
            return False
        zeros = getattr(group, "reduce_scatter_unused_params", False) and whole.requires_grad
        return self.param.unsharded_accumulated_grad is not None or whole.grad is not None or zeros


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
    _present: tuple[_Sharded, ...] = ()  # those with a gradient, when it last began to reduce
    _buckets: dict[int, tuple[Any, Bucket]] = field(default_factory=dict)  # the newest, by call

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
    def _mesh_info(self) -> Any:
        """torch's description of the mesh, with the replicas that ``leave_replicas`` has taken out."""
        return getattr(self.group.mesh_info, _WHOLE, self.group.mesh_info)

    def _use_mesh(self, info: Any) -> None:
        before, self.group.mesh_info = self.group.mesh_info, info
        # torch compares both to see whether forward leaves the parameters on another mesh.
        if self.group.post_forward_mesh_info is before:
            self.group.post_forward_mesh_info = info

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """The ranks that the parameters are sharded over; None after ``replicate()``."""
        return getattr(self._mesh_info, "shard_process_group", None)

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same shard, by the model's own mesh; None if the mesh has one dimension of shards."""
        return getattr(self._mesh_info, "replicate_process_group", None)

    def leave_replicas(self) -> None:
        """Let torch leave out its all-reduce over replicas, so that the all-reduce hook gets this rank's gradient."""
        from torch.distributed.fsdp._fully_shard._fsdp_common import DataParallelMeshInfo, FSDPMeshInfo

        whole = self._mesh_info
        kind = FSDPMeshInfo if isinstance(whole, FSDPMeshInfo) else DataParallelMeshInfo
        rest = kind.__new__(kind)
        vars(rest).update(vars(whole), **{_WHOLE: whole})
        self._use_mesh(rest)

    def join_replicas(self) -> None:
        """Undo ``leave_replicas``."""
        self._use_mesh(self._mesh_info)

    @property
    def has_partial_sum(self) -> bool:
        """Whether torch waits for an all-reduce of gradients from backwards without one."""
        return self.group._partial_reduce_output is not None

    @property
    def ranks(self) -> int:
        """Ranks that the parameters are sharded over."""
        return 1 if self.shard_group is None else self.shard_group.size()

    @property
    def by_rows(self) -> bool:
        """Whether all its parameters are sharded along their first dimension."""
        return all(param.param.fsdp_placement.dim == 0 for param in self._params)

    @property
    def calls(self) -> int:
        """The most times that it was reduced in one backward so far; at least 1."""
        return 1 + max(self._buckets, default=0)

    def watch(self) -> None:
        """Note which parameters have a gradient each time that FSDP2 reduces.

        FSDP2 leaves the others out, and what it passes on does not say so. The last moment at which it shows is before
        ``post_backward``, which takes the gradients from the parameters.
        """
        group = self.group
        reduce = type(group).post_backward

        def post_backward(*unused: Any) -> None:
            self._present = tuple(param for param in self._params if param.has_gradient(group))
            reduce(group, *unused)

        group.post_backward = post_backward

    def unwatch(self) -> None:
        """Undo ``watch``."""
        vars(self.group).pop("post_backward", None)

    @property
    def reduce_scatter(self) -> Any:
        """The object that the group calls to reduce its gradients."""
        return self.group._reduce_scatter_comm

    @reduce_scatter.setter
    def reduce_scatter(self, comm: Any) -> None:
        self.group._reduce_scatter_comm = comm  # FSDPModule.set_custom_reduce_scatter does the same

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield its sharded parameters."""
        for param in self._params:
            yield param.name, param.param.sharded_param

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Yield each parameter's name and the elements of a rank's piece of it, padding included."""
        for param in self._params:
            yield param.name, param.numel

    @property
    def all_reduce_hook(self) -> Any:
        """The hook that the group calls after its reduce-scatter; None if there is none."""
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
        """The divisor of the sum over ranks that ``set_gradient_divide_factor`` set; None for their number."""
        factor: float | None = self.group.gradient_divide_factor
        return factor

    @property
    def sums_only(self) -> bool:
        """Whether ``set_force_sum_reduction_for_comms`` divides after all collectives instead of in them."""
        return bool(self.group.force_sum_reduction_for_comms)

    def bucket(self, numel: int, call: int, groups: int, rows: int | None = None) -> Bucket:
        """Describe the gradient that FSDP2 is about to reduce, of the parameters that have one.

        Args:
            numel: Its elements.
            call: How often the group was reduced before in this backward. Each time has a residual of its own.
            groups: Number of groups of the model.
            rows: Number of ranks that it has a row for; each piece is named after its rank. None if it is this rank's
                shard, whose pieces have the names of their parameters.

        Raises:
            RuntimeError: Its parameters have another number of elements.
        """
        parts = tuple((one.name, one.numel, one.shape) for one in self._present)
        here = sum(size for _, size, _ in parts) * (rows or 1)
        if numel != here:
            raise RuntimeError(
                f"FSDP module {self.label or 'model'!r} reduces {numel} elements, and its {len(parts)} parameters with "
                f"a gradient have {here}: torch {torch.__version__} reduces them in a way that gravac does not know"
            )
        if call not in self._buckets or self._buckets[call][0] != parts:
            suffix = f"{CALL}{call}" if call else ""
            self._buckets[call] = parts, _described(self.number + call * groups, parts, suffix, rows)
        return self._buckets[call][1]

    def pieces(self, shard: Tensor) -> dict[str, Tensor]:
        """Return views of a rank's shard of the gradient that is being reduced, by parameter."""
        views = shard.split([one.numel for one in self._present])
        return dict(zip((one.name for one in self._present), views, strict=True))

    def full_bucket(self, rows: int | None = None) -> Bucket:
        """Describe the gradient of all its parameters, as ``bucket`` does for the first call in a backward."""
        parts = tuple((param.name, param.numel, param.shape) for param in self._params)
        return _described(self.number, parts, "", rows)


def _described(
    number: int, parts: Sequence[tuple[str, int, tuple[int, ...]]], suffix: str, rows: int | None
) -> Bucket:
    names = tuple(name + suffix for name, _, _ in parts)
    if rows is not None:
        names = tuple(piece_name(name, rank) for rank in range(rows) for name in names)
    return Bucket(
        number,
        names,
        tuple(size for _, size, _ in parts) * (rows or 1),
        tuple(shape for _, _, shape in parts) if rows is None else (),
    )
