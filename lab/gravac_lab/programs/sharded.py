"""FSDP2 among the methods of ``gravac bench train``: plain, without its reduce-scatter, and with an agent."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gravac_agent import Agent
from gravac_lab.tasks import Task

FORM = "fsdp[:bf16,keep,unreduced][/COMPRESSOR/MEMORY/POLICY]"


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is sharded.

    Attributes:
        bf16: Parameters are gathered in bfloat16, gradients reduced in float32.
        keep: Parameters are not freed after forward, so that they are gathered once a step.
        unreduced: Gradients are not reduced, which leaves the traffic of the parameters.
    """

    bf16: bool = False
    keep: bool = False
    unreduced: bool = False

    @classmethod
    def parse(cls, method: str) -> "Sharding":
        """Parse the part of a method before the first slash, such as ``fsdp:bf16,keep``. Raises ValueError."""
        words = [word for word in method.split("/")[0].partition(":")[2].split(",") if word]
        unknown = set(words) - {"bf16", "keep", "unreduced"}
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]!r} is no option; write {FORM}")
        return cls(**dict.fromkeys(words, True))


def shard(model: nn.Module, how: Sharding) -> nn.Module:
    """Shard each layer of a model, and the rest of it, over all ranks. Raises ValueError for an LSTM."""
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        raise ValueError(
            "FSDP2 cannot shard nn.LSTM, which keeps its weights in a list of its own; use --task gpt"
        )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": not how.keep}
    if how.bf16:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in model.children():
        for layer in part if isinstance(part, nn.Sequential) else ():
            fully_shard(layer, **options)
    fully_shard(model, **options)
    if how.unreduced:
        for one in model.modules():
            if isinstance(one, FSDPModule):
                one.set_custom_reduce_scatter(_Unreduced())  # type: ignore[arg-type]
    return model


@contextmanager
def sharded_agent(
    task: Task,
    how: Sharding,
    settings: dict[str, Any],
    scratch: Path,
) -> Iterator[tuple[nn.Module, torch.optim.Optimizer, Agent]]:
    """Shard the model of a task and run an agent on it.

    Args:
        task: The task on this rank.
        how: How its model is sharded.
        settings: Settings of the agent.
        scratch: Folder for its journal.
    """
    model = shard(task.model, how)
    optimizer = task.recipe.optimizer(model.parameters())
    with Agent(model, optimizer, controller=None, data_dir=scratch, job="bench", **settings) as agent:
        yield model, optimizer, agent


class _Unreduced:
    """A reduce-scatter that sends nothing: each rank keeps its own gradient of its shard."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])
