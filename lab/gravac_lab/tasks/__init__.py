"""Trainings with real data and a held-out loss, for the demo, the benchmarks and simulated jobs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gravac.registry import construct, split
from gravac_lab.tasks import digits, gpt, lm, logistic, resnet, vgg, vit
from gravac_lab.tasks.recipe import (
    Batch,
    Data,
    Recipe,
    Schedule,
    Score,
    Task,
    TaskError,
    choose,
    elements_of,
    evaluate,
    loss_of,
)

TASKS: dict[str, Callable[..., Recipe]] = {
    "lm": lm.recipe,
    "gpt": gpt.recipe,
    "resnet": resnet.recipe,
    "vgg": vgg.recipe,
    "vit": vit.recipe,
    "logistic": logistic.recipe,
    "digits": digits.recipe,
}


def make(text: str, data: Path | None = None) -> Recipe:
    """Make a recipe from ``name`` or ``name:setting=value,setting=value``.

    Args:
        text: For example ``lm``, ``gpt:size=3m``, ``gpt:optimizer=lamb,rate=0.01``. The settings of a task are the
            arguments of its ``recipe`` function.
        data: Folder with data of the user's own; None: what the task brings.

    Raises:
        TaskError: There is no such task, setting or value, or the data are missing.
    """
    try:
        name, settings = split(text, "task")
        for setting, value in settings.items():
            if isinstance(value, int | float) and not value > 0:
                raise TaskError(f"task={text!r}: {setting}={value} must be more than 0")
        recipe = construct(choose("task", name, TASKS), text, settings, data, what="task")
    except ValueError as error:
        raise TaskError(str(error)) from None
    return replace(recipe, name=text.strip())


__all__ = [
    "TASKS",
    "Batch",
    "Data",
    "Recipe",
    "Schedule",
    "Score",
    "Task",
    "TaskError",
    "elements_of",
    "evaluate",
    "loss_of",
    "make",
]
