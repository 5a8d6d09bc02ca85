"""Lightning: ``Trainer(strategy="ddp", callbacks=[GravacCallback()])``."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gravac_agent.agent import Agent
from gravac_agent.errors import SetupError
from gravac_agent.integrations import rank_files
from gravac_agent.integrations.attachment import Attachment

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer
    except ImportError:
        raise SetupError(
            "gravac_agent.integrations.lightning needs Lightning: pip install 'gravac[lightning]'"
        ) from None

log = logging.getLogger("gravac.agent")


class GravacCallback(Callback):
    """Compresses the gradients of a Lightning training with the strategy ``ddp``.

    It runs an :class:`gravac.Agent` from ``on_train_start`` to ``on_train_end``; an exception ends it too. It reports
    the loss that ``training_step`` returns, logs its figures with ``self.log`` under ``gravac/…``, clips by norm in
    place of the trainer (``gradient_clip_val``), and saves its state beside each checkpoint: one file per rank in the
    folder ``<checkpoint>.gravac``.

    Args:
        settings: Keywords of :class:`gravac.Agent`, such as ``compressor="int4"``.

    Raises:
        SetupError: For a keyword that ``Agent`` does not have.
    """

    def __init__(self, **settings: Any) -> None:
        self._attachment = Attachment("GravacCallback", settings)
        self._loss: Tensor | float | None = None
        self._steps = 0
        self._clip: tuple[Any, Any] | None = None  # the trainer's setting, while the agent clips
        self._state: dict[str, Any] | None = None
        self._resumed = False

    @property
    def agent(self) -> Agent | None:
        """The running agent, with ``state`` and ``url``; None outside a training, and where nothing is compressed."""
        return self._attachment.agent

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the agent, and load its state where the trainer resumes."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        agent = self._attachment.start(trainer.strategy.model, trainer.optimizers[0], scaler)
        if agent is None:
            return
        if self._resumed and trainer.ckpt_path is not None:
            rank_files.load(agent, [_folder(trainer.ckpt_path)])
        self._resumed, self._steps, self._loss = False, trainer.global_step, None
        self._follow_checkpoints(trainer)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Clip instead of the trainer, and end the exchange: Lightning runs backward inside the optimizer's step."""
        agent = self.agent
        if agent is None or optimizer is not trainer.optimizers[0]:
            return
        if _clips_by_norm(trainer, pl_module):
            agent.clip_grad_norm_(float(trainer.gradient_clip_val))
            self._clip = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
            trainer.gradient_clip_val = None
        agent.finish_backward()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the loss of a finished step to the agent, and the agent's figures to the loggers."""
        self._give_clipping_back(trainer)
        agent = self.agent
        if agent is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and loss.numel() == 1:
            # Lightning divides it by the number of micro-batches, so the sum is their mean.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if self._loss is not None:
            agent.log(loss=self._loss)
            self._loss = None
        every = trainer.log_every_n_steps
        if trainer.is_global_zero and every and trainer.global_step % every == 0:
            pl_module.log_dict(
                agent.figures(), on_step=True, on_epoch=False, batch_size=1, rank_zero_only=True
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the agent."""
        self._end(trainer, clean=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the agent without waiting for the other ranks."""
        self._end(trainer, clean=False)

    def state_dict(self) -> dict[str, Any]:
        """Note in the checkpoint that an agent's state belongs to it; the state itself is in files of each rank."""
        return {"gravac": self.agent is not None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Note that the checkpoint has an agent's state. It is loaded when the agent starts."""
        self._resumed = bool(state_dict.get("gravac"))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take this rank's state; it is written once Lightning has written its file."""
        agent = self.agent
        if agent is not None:
            self._state = agent.state_dict()

    def _follow_checkpoints(self, trainer: Trainer) -> None:
        """Write and delete the ranks' files with the trainer's checkpoints, whose path callbacks do not get."""
        strategy = trainer.strategy
        save, remove = strategy.save_checkpoint, strategy.remove_checkpoint

        def save_too(checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
            save(checkpoint, filepath, storage_options=storage_options)
            state, self._state = self._state, None
            if state is None:
                return
            if "://" in str(filepath):
                log.warning("the agent's state is not saved with checkpoints at a URL, such as %s", filepath)
                return
            rank_files.save(state, _folder(filepath), trainer.global_rank, trainer.world_size)

        def remove_too(filepath: Any) -> None:
            remove(filepath)
            rank_files.remove(_folder(filepath), trainer.global_rank)

        strategy.save_checkpoint, strategy.remove_checkpoint = save_too, remove_too

    def _end(self, trainer: Trainer, clean: bool) -> None:
        self._give_clipping_back(trainer)
        for name in ("save_checkpoint", "remove_checkpoint"):
            vars(trainer.strategy).pop(name, None)  # the class's own method is left
        self._attachment.close(clean=clean)

    def _give_clipping_back(self, trainer: Trainer) -> None:
        if self._clip is not None:
            (trainer.gradient_clip_val, trainer.gradient_clip_algorithm), self._clip = self._clip, None


def _folder(checkpoint: Any) -> Path:
    return Path(f"{checkpoint}.gravac")


def _clips_by_norm(trainer: Trainer, module: LightningModule) -> bool:
    """Return whether the trainer would clip by norm: not by value, nor in a way of the module's own."""
    own = type(module).configure_gradient_clipping is not LightningModule.configure_gradient_clipping
    algorithm = trainer.gradient_clip_algorithm
    by_norm = algorithm is None or str(getattr(algorithm, "value", algorithm)) == "norm"
    return bool(trainer.gradient_clip_val) and by_norm and not own
