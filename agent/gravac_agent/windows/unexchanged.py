"""Gradients that an optimizer steps by and that were never exchanged, so that each rank trains a model of its own."""

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from gravac_agent.fsdp.model import DataParallel, ShardedModel

STEPS = 3
"""Steps of which nothing was exchanged, before that is said. One may be a step that the trainer repeats."""
SHOWN = 3
"""Parameters that a sentence names."""


class Unexchanged:
    """Counts steps of optimizers that no exchange came before, and looks for parameters that no exchange has.

    Args:
        module: Has the parameters.
        names: Names of the parameters by their ``id``.

    Attributes:
        stepped: ``id`` of the optimizers that stepped since the last exchange; None: there was none yet.
        asked: Whether a forward since then was outside of no_sync(); None: no forward went through the module.
    """

    def __init__(self, module: DataParallel, names: Mapping[int, str]) -> None:
        self._module, self._names = module, names
        self.stepped: set[int] | None = None
        self.asked: bool | None = None
        self._steps = 0
        self._left_out = False  # that was said

    def before_step(self) -> str:
        """Return what to say before an optimizer steps that has stepped since the last exchange."""
        if self._steps >= STEPS or not self._has_gradients():
            return ""
        self._steps += 1
        return self._sentence() if self._steps == STEPS else ""

    def left_out(self, exchanged: Collection[str]) -> str:
        """Return what to say, once, of parameters that have a gradient and are not among the ``exchanged`` ones."""
        if self._left_out or isinstance(self._module, ShardedModel):
            return ""
        ignored = self._module.parameters_to_ignore
        trained = [(self._names[id(one)], one) for one in self._module.parameters() if one.requires_grad]
        out = [
            name
            for name, one in trained
            if one.grad is not None and name not in exchanged and name not in ignored
        ]
        if not out:
            return ""
        self._left_out = True
        more = ", …" if len(out) > SHOWN else ""
        return (
            f"{len(out)} of {len(trained)} trainable parameters ({', '.join(map(repr, out[:SHOWN]))}{more}) are not "
            "exchanged: they got requires_grad=True after DistributedDataParallel wrapped the module, which does not "
            "know of them, so each rank steps them by its own gradients. After releasing them, wrap the module again "
            "and make an Agent for that."
        )

    def _has_gradients(self) -> bool:
        gradients = (one.grad for one in self._module.parameters())
        return any(one is not None and (not _is_readable(one) or bool(one.any())) for one in gradients)

    def _sentence(self) -> str:
        if isinstance(self._module, ShardedModel):
            why = (
                "Call the model that the Agent was given, and set_requires_gradient_sync(True) before the last "
                "backward of each step."
            )
        elif self.asked is None:
            why = (
                "No forward went through it: call the DistributedDataParallel module itself, not its .module."
            )
        elif not self.asked:
            why = "Each backward was inside no_sync(): leave the last backward before each step out of it."
        else:
            why = (
                "Its hooks are gone, as after .to(dtype) or .half(): convert the model first, before "
                "DistributedDataParallel wraps it."
            )
        return (
            f"{self._steps} steps of the optimizer used gradients of which nothing was exchanged, so each rank trains "
            f"a model of its own. {why}"
        )


def _is_readable(gradient: Tensor) -> bool:
    """Return whether a gradient can be looked at without waiting: it is whole, and on the host."""
    return type(gradient) in (Tensor, nn.Parameter) and not (gradient.is_cuda or gradient.is_sparse)
