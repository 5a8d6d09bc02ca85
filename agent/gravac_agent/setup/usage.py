"""Checks what an agent is attached to, with clear errors before anything starts."""

import logging
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gravac import memories
from gravac.collectives import AUTO
from gravac.optim.adam import PLAIN, Adam, AdamW, adopt, excluded
from gravac.policies.base import Policy
from gravac_agent.errors import SetupError
from gravac_agent.fsdp.model import DataParallel, ShardedModel, has_replicas, is_sharded, wrapper
from gravac_agent.fsdp.replicas import Replicas, ReplicatedModel
from gravac_agent.network.link import Link
from gravac_agent.setup.describe import groups_of, innermost, number

log = logging.getLogger("gravac.agent")

ALONE = {
    "DeepSpeedEngine": ", which reduces gradients itself and lets nobody else do it",
    "FullyShardedDataParallel": " (FSDP1), which is not supported",
}
"""Wrappers by the name of their class, so that nothing of them is imported."""
INSIDE = ("optimizer", "optim", "base_optimizer", "base", "original_optimizer")
"""What wrappers call the optimizer inside, such as Accelerate's, ``PostLocalSGDOptimizer`` and copies of Lookahead."""


class Scaler(Protocol):
    """The part of ``torch.amp.GradScaler`` that the agent uses."""

    def get_scale(self) -> float:
        """Return the loss scale."""
        ...


def explained(module: nn.Module) -> str:
    """Return why a module that is neither DDP nor FSDP2 cannot be trained with the agent, where that is known."""
    if type(module).__module__.startswith("torchft"):
        return ": torchft decides step by step which ranks take part, in a hook of its own, and DDP has place for one"
    return ALONE.get(type(module).__name__, "")


def data_parallel(module: nn.Module, replicate: Replicas | None = None) -> DataParallel:
    """Return the DDP module or the FSDP2 model: ``module`` itself, or what ``torch.compile`` wrapped.

    Args:
        module: The module.
        replicate: See ``Agent``.

    Raises:
        SetupError: It is another module, the agent cannot compress it, or ``replicate`` does not fit it.
    """
    inner = unwrapped_module(module)
    if isinstance(inner, DistributedDataParallel):
        if replicate is not None:
            raise SetupError(
                "replicate= names the replicas of a model after fully_shard (FSDP2), and this is a "
                "DistributedDataParallel module: leave it out"
            )
        return inner
    if has_replicas(inner):
        if replicate is not None:
            raise SetupError(
                f"replicate= names the replicas of this model, and the mesh that {wrapper(inner)} got has them "
                "already: leave replicate= out"
            )
        return ReplicatedModel(inner)
    return ShardedModel(inner) if replicate is None else ReplicatedModel(inner, replicate)


def unwrapped_module(module: nn.Module) -> nn.Module:
    """Return the DDP module or the FSDP2 model, out of ``torch.compile``. Raises SetupError for others."""
    inner: nn.Module = getattr(module, "_orig_mod", module)
    if is_sharded(inner) or (isinstance(inner, DistributedDataParallel) and not explained(inner)):
        return inner
    if averages := _averages_itself(inner):
        raise SetupError(f"module={type(inner).__name__} {averages}")
    what = f"torch.compile of {type(inner).__name__}" if inner is not module else type(module).__name__
    if not isinstance(inner, nn.Module):
        raise SetupError(_no_module(inner))
    if part := next((one for one in inner.modules() if is_sharded(one)), None):
        raise SetupError(
            f"{wrapper(part)} was called on parts of {what} and not on the whole: call {wrapper(part)}(model) last, on "
            "the model itself, so that all of its gradients are reduced"
        )
    wrapped = "Agent wraps a DistributedDataParallel module, or a model after fully_shard (FSDP2), got "
    inside = [name for name, one in inner.named_modules() if isinstance(one, DistributedDataParallel)]
    if inside and not explained(inner):
        several = ", and an Agent for each of the others" if len(inside) > 1 else ""
        raise SetupError(
            f"{wrapped}{what}, which has one inside: write Agent(model.{inside[0]}, optimizer){several}, where model "
            f"is the {type(inner).__name__}"
        )
    raise SetupError(
        f"{wrapped}{what}{explained(inner)}: write Agent(DistributedDataParallel(model), optimizer)"
    )


def _no_module(module: object) -> str:
    """Return why something that is no module at all cannot be the first argument."""
    if isinstance(module, torch.optim.Optimizer):
        return f"module={type(module).__name__} is the optimizer: the module comes first, Agent(module, optimizer)"
    if isinstance(module, type):
        return f"module={module.__name__} is a class: make the module, Agent(DistributedDataParallel(model), optimizer)"
    return (
        f"module={module!r:.100} is not a module: write Agent(DistributedDataParallel(model), optimizer), or pass the "
        "model after fully_shard (FSDP2)"
    )


def unwrapped(optimizer: Any, scaler: Any) -> tuple[Any, Any]:
    """Return the optimizer inside wrappers that run no hooks, such as Accelerate's, and a wrapper's scaler.

    Raises:
        SetupError: The one inside steps other parameter groups, or the wrapper averages gradients itself.
    """
    if averages := _averages_itself(optimizer):
        raise SetupError(f"optimizer={type(optimizer).__name__} {averages}")
    for _ in range(8):  # a wrapper may hold itself
        # Many wrappers are an Optimizer by class, and were never initialized as one.
        if hasattr(optimizer, "_optimizer_step_pre_hooks"):
            break
        inside = [(name, getattr(optimizer, name, None)) for name in INSIDE]
        name, inner = next(((name, one) for name, one in inside if hasattr(one, "param_groups")), ("", None))
        if inner is None:
            break
        if list(map(id, getattr(optimizer, "param_groups", ()))) != list(map(id, inner.param_groups)):
            raise SetupError(
                f"optimizer={type(optimizer).__name__} wraps a {type(inner).__name__} (.{name}) with other parameter "
                "groups, and runs no hooks of torch itself: pass the one that steps the module's parameters, such as "
                f"Agent(module, optimizer.{name})"
            )
        optimizer, scaler = inner, getattr(optimizer, "scaler", None) if scaler is None else scaler
    return optimizer, scaler


def _averages_itself(part: object) -> str:
    """Return why a module or an optimizer of opacus cannot be trained with the agent; empty for others."""
    if not any(kind.__module__.partition(".")[0] == "opacus" for kind in type(part).__mro__):
        return ""
    return (
        "is of opacus, which adds its noise to each rank's gradients and then averages them itself: train without the "
        "Agent"
    )


def check_arguments(optimizer: object, scaler: object) -> None:
    """Check that an optimizer and the scaler have the methods that the agent calls. Raises SetupError."""
    if isinstance(optimizer, list | tuple | dict):
        kinds = ", ".join(
            type(one).__name__ for one in (optimizer.values() if isinstance(optimizer, dict) else optimizer)
        )
        raise SetupError(
            f"optimizer= is a {type(optimizer).__name__} of {len(optimizer)} ({kinds[:100]}): pass a list of optimizers"
        )
    if isinstance(optimizer, type):
        raise SetupError(
            f"optimizer={optimizer.__name__} is a class: make it, such as "
            f"{optimizer.__name__}(module.parameters(), lr=…), and pass that"
        )
    if isinstance(optimizer, nn.Module):
        raise SetupError(
            f"optimizer={type(optimizer).__name__} is a module: the module comes first and the optimizer second, "
            "Agent(module, optimizer)"
        )
    if isinstance(optimizer, torch.optim.Optimizer) and not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise SetupError(
            f"optimizer={type(optimizer).__name__} was not initialized as a torch.optim.Optimizer: call "
            "super().__init__(params, defaults) in its __init__, or pass the optimizer that it wraps"
        )
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "register_step_pre_hook")):
        raise SetupError(
            f"optimizer={optimizer!r:.100} is not a torch.optim.Optimizer: pass the one that steps the module's "
            "parameters, Agent(module, optimizer)"
        )
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise SetupError(
            f"scaler={scaler!r:.100} is not a torch.amp.GradScaler: pass the one that scales the loss, or leave it out"
        )


def check_instances(policy: object, link: object, data_dir: object) -> None:
    """Check arguments that are a text or an object of one class. Raises SetupError."""
    if not isinstance(policy, str | Policy | None):
        how = (
            f"make it, {policy.__name__}(…)"
            if isinstance(policy, type)
            else "write a name, such as 'static:cf=100'"
        )
        raise SetupError(f"policy={policy!r:.100} is neither a text nor a gravac.policies.Policy: {how}")
    if not isinstance(link, str | Link | None):
        raise SetupError(
            f"link={link!r:.100} is neither a text nor a gravac.Link: write a rate, such as '100mbit', or "
            "gravac.Link(bits_per_second=1e8)"
        )
    if not isinstance(data_dir, str | PathLike | None):
        raise SetupError(f"data_dir={data_dir!r:.100} is not a path: write a folder, such as 'gravac-runs'")


def check_devices(module: DataParallel) -> None:
    """Check that all gradients are on the CPU, or on one GPU. Raises SetupError."""
    devices = {str(parameter.device) for parameter in module.parameters() if parameter.requires_grad}
    if len(devices) > 1:
        raise SetupError(
            f"the module's gradients are on {', '.join(sorted(devices))}: a rank's must be on one device, so put each "
            "part of a module into DistributedDataParallel by itself, or pass enabled=False"
        )
    kinds = {name.split(":")[0] for name in devices}
    if kinds <= {"cpu"}:
        return
    if kinds != {"cuda"}:
        raise SetupError(
            f"the module's gradients are on {', '.join(sorted(devices))}: the agent compresses those on cpu and cuda; "
            "pass enabled=False to train it with plain DDP or FSDP2"
        )


def check(
    module: DataParallel, optimizers: Sequence[torch.optim.Optimizer], memory: str, collective: str
) -> None:
    """Check what only a running agent needs. Raises SetupError."""
    _check_reducer(module)
    _check_owned(module, optimizers)
    if isinstance(module, ShardedModel) and module.exchanges_rows and collective != AUTO:
        raise SetupError(
            f"collective={collective!r} exchanges whole gradients, and FSDP2 reduces each to a shard: leave it out"
        )
    check_memory(memory, module, optimizers)
    for optimizer in optimizers:
        _check_aged(innermost(optimizer))
    check_join(module)


def _check_owned(module: DataParallel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    every = [id(parameter) for group in groups_of(optimizers) for parameter in group["params"]]
    stepped = set(every)
    if len(stepped) < len(every) and len(optimizers) > 1:
        raise SetupError(
            f"optimizer= lists {len(optimizers)} optimizers, and {len(every) - len(stepped)} parameters are stepped by "
            "two of them: the residual of each follows one learning rate, so give each parameter one optimizer"
        )
    kinds = " and ".join(type(one).__name__ for one in optimizers)
    trainable = [id(parameter) for parameter in module.parameters() if parameter.requires_grad]
    owned, there = len(stepped.intersection(trainable)), len(trainable)
    if not there:
        raise SetupError(
            "the module has no parameter with requires_grad=True, so there is nothing to train: unfreeze some"
        )
    if not owned:
        raise SetupError(
            f"optimizer={kinds} steps none of the module's {there} trainable parameters, so the "
            "agent cannot skip a step with a non-finite gradient: make it from module.parameters()"
        )
    if owned < there:
        log.warning(
            "the optimizer steps %d of the module's %d trainable parameters: the residual follows the learning rate of "
            "these only",
            owned,
            there,
        )


def adapted(optimizers: Sequence[torch.optim.Optimizer]) -> list[Callable[[], None]]:
    """Let the optimizers that are torch's AdamW or Adam step by age, and return what undoes it.

    Raises:
        SetupError: None of them can, or one has a setting with which it cannot.
    """
    inner = [innermost(one) for one in optimizers]
    if not any(type(one) in PLAIN or isinstance(one, Adam | AdamW) for one in inner):
        kinds = " and ".join(type(one).__name__ for one in inner)
        raise SetupError(
            f"adapt_optimizer=True takes over a torch.optim.AdamW or Adam, and no class derived from them, and "
            f"optimizer={kinds}: leave it out"
        )
    for one in inner:
        if type(one) in PLAIN and (name := excluded(one)):
            raise SetupError(
                f"adapt_optimizer=True, and optimizer={type(one).__name__} has {name}=True, with which it cannot step "
                f"elements by their age: leave out {name} or adapt_optimizer"
            )
    return [adopt(one) for one in inner if type(one) in PLAIN or type(one) in PLAIN.values()]


def _check_aged(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, Adam | AdamW):
        return
    kind = type(optimizer).__name__
    if name := excluded(optimizer):
        raise SetupError(
            f"optimizer={kind} of gravac.optim has {name}=True, with which it cannot step elements by their age: leave "
            f"{name} out, or use torch.optim.{kind}"
        )


def check_memory(memory: str, module: DataParallel, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check that only the memory applies a momentum, if it does, and to all gradients. Raises SetupError."""
    try:
        if not memories.build(memory).transforms:
            return
    except ValueError as error:
        raise SetupError(str(error)) from None
    # Applied by both, it would count twice.
    own = max(number(group.get("momentum")) or 0.0 for group in groups_of(optimizers))
    if own:
        raise SetupError(
            f"memory={memory!r} applies the momentum, and the optimizer has momentum={own:g} as well: "
            "give the optimizer momentum=0"
        )
    sparse = next(sparse_parameters(module.module), None)
    if sparse is not None:
        raise SetupError(
            f"memory={memory!r} applies the momentum, and the sparse gradients of {sparse!r} do not pass through it: "
            "use memory='residual' with the optimizer's own momentum, or sparse=False"
        )


def sparse_parameters(module: nn.Module) -> Iterator[str]:
    """Yield the names of the trainable parameters that get sparse gradients, by the test that DDP makes."""
    for prefix, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            yield f"{prefix}.weight" if prefix else "weight"


def check_join(module: DataParallel) -> None:
    """Raise SetupError inside a ``Join`` context, which must not outlive the agent."""
    if isinstance(module, DistributedDataParallel) and module._join_config.enable:
        raise SetupError(
            "the Agent starts inside a Join context, and ranks leave that one by one: write "
            "`with Agent(...):` around `with Join([module]):`"
        )


def _check_reducer(module: DataParallel) -> None:
    if getattr(module, "_delay_all_reduce_params", ()):
        raise SetupError(
            "DistributedDataParallel(delay_all_reduce_named_params=…) all-reduces those parameters past the agent, and "
            "torch does not wait for that before the optimizer steps: leave it and param_to_hook_all_reduce out, or "
            "pass enabled=False"
        )
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in module.parameters()):
        raise SetupError(
            "_apply_optimizer_in_backward steps the module's parameters within backward, by DDP's only communication "
            "hook, which the agent needs: leave it out and call optimizer.step(), or pass enabled=False"
        )
    if getattr(module, "_use_python_reducer", False):
        raise SetupError(
            "torch._dynamo.config.optimize_ddp='python_reducer' (compiled autograd) exchanges gradients inside the "
            "compiled graph, past the agent: set it to 'ddp_optimizer', the default, before you make the "
            "DistributedDataParallel module, or pass enabled=False"
        )


def warn_of_steps_outside(optimizer: torch.optim.Optimizer) -> RemovableHandle:
    """Warn once when the optimizer steps while the agent does not run. Remove the handle to stop that."""
    warned = False

    def warn(*_: Any) -> None:  # it cannot remove itself while torch iterates over the hooks
        nonlocal warned
        if not warned:
            warned = True
            log.warning(
                "the optimizer steps, and the Agent made for it does not run: nothing is compressed. Write "
                "`with Agent(module, optimizer):` around the training loop"
            )

    handle: RemovableHandle = optimizer.register_step_pre_hook(warn)
    return handle
