"""Hugging Face: ``Trainer(…, callbacks=[GravacCallback()])``."""

import gc
import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from gravac_agent.agent import Agent
from gravac_agent.errors import SetupError
from gravac_agent.integrations import rank_files
from gravac_agent.integrations.attachment import Attachment

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError:
    raise SetupError(
        "gravac_agent.integrations.transformers needs Transformers: pip install 'gravac[transformers]'"
    ) from None

log = logging.getLogger("gravac.agent")


class GravacCallback(TrainerCallback):
    """Compresses the gradients of a Hugging Face ``Trainer`` that torchrun or ``accelerate launch`` started.

    It runs an :class:`gravac.Agent` from ``on_train_begin`` to ``on_train_end``. It reports the loss of each step, logs
    its figures with ``trainer.log`` under ``gravac/…`` whenever the trainer logs a loss, clips instead of the trainer
    (``max_grad_norm``, which is 1 by default), and saves its state in each checkpoint's folder, one file per rank.

    Args:
        resume_from: Folder of the checkpoint that ``train(resume_from_checkpoint=…)`` got, where it is not
            ``<output_dir>/checkpoint-<step>``.
        settings: Keywords of :class:`gravac.Agent`, such as ``compressor="int4"``.

    Raises:
        SetupError: For a keyword that ``Agent`` does not have.
    """

    def __init__(self, *, resume_from: str | Path | None = None, **settings: Any) -> None:
        self._attachment = Attachment("GravacCallback", settings)
        self._resume_from = resume_from
        self._trainer: Any = None
        self._seen: Tensor | None = None  # the trainer's sum of losses at the end of the last step
        self._max_norm: float | None = None  # the trainer's setting, while the agent clips
        self._logging = False

    @property
    def agent(self) -> Agent | None:
        """The running agent, with ``state`` and ``url``; None outside a training, and where nothing is compressed."""
        return self._attachment.agent

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the agent, and load its state where the trainer resumes."""
        self._trainer = trainer = _trainer_of(self)
        self._seen = None
        scaler = getattr(trainer.accelerator, "scaler", None)
        agent = self._attachment.start(trainer.model_wrapped, trainer.optimizer, scaler)
        if agent is not None and state.global_step:
            given = [self._resume_from, args.resume_from_checkpoint, _checkpoint(args, state)]
            rank_files.load(agent, [Path(each) for each in given if isinstance(each, str | Path)])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the trainer from clipping in this step: the agent does."""
        if self.agent is not None and args.max_grad_norm and self._max_norm is None:
            self._max_norm, args.max_grad_norm = args.max_grad_norm, 0.0

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clip as plain DDP would have clipped."""
        if self._max_norm is not None and self.agent is not None:
            self.agent.clip_grad_norm_(self._max_norm)
        self._give_clipping_back(args)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the loss of the step: what the trainer's sum of losses grew by since the step before."""
        total = getattr(self._trainer, "_tr_loss", None)
        if self.agent is None or not isinstance(total, Tensor):
            return
        before = self._seen
        if self._trainer._globalstep_last_logged == state.global_step - 1:  # the trainer began a new sum
            before = None
        self.agent.log(loss=total.detach() - (0.0 if before is None else before))
        self._seen = total.detach().clone()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the agent's figures when the trainer logs a loss. All ranks do, as a trainer's ``log`` may need all."""
        agent = self.agent
        if self._logging or not logs or "loss" not in logs or self._trainer is None or agent is None:
            return
        self._logging = True
        try:
            self._trainer.log(agent.figures())
        finally:
            self._logging = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save this rank's state in the checkpoint's folder."""
        agent = self.agent
        if agent is not None and not args.save_only_model:
            rank_files.save(agent.state_dict(), _checkpoint(args, state), args.process_index, args.world_size)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the agent."""
        self._give_clipping_back(args)
        self._attachment.close(clean=True)
        self._trainer = self._seen = None

    def _give_clipping_back(self, args: TrainingArguments) -> None:
        if self._max_norm is not None:
            args.max_grad_norm, self._max_norm = self._max_norm, None


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _trainer_of(callback: TrainerCallback) -> Trainer:
    """Return the trainer that has a callback: it tells its callbacks of the model, and not of the DDP module."""
    for found in gc.get_objects():
        if issubclass(type(found), Trainer) and any(
            each is callback for each in found.callback_handler.callbacks
        ):
            return found
    raise SetupError(
        "GravacCallback finds no transformers.Trainer that has it: pass it in Trainer(callbacks=[…])"
    )
