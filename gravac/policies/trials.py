"""The price of trials (promise P12): what they may cost of somebody's training, and when a step ends one."""

from gravac.policies.base import Plan
from gravac.protocol import Trial

FIRST_MINUTE, FIRST_SHARE = 60.0, 0.2
"""Trials may take 20 % of the first minute, while nothing is known. [s, share; chosen]"""
SHARE = 0.02
"""Trials may take 2 % of the time after it. [share; chosen]"""
TRIAL_STEPS, LAG_STEPS = 10, 3
"""Steps of a window that tries a plan, and about those more until the next decision is in force. [steps; chosen]"""
TOO_LONG = 3.0
"""A step of a trial that takes this many times as long as predicted ends it, two steps later. [times; chosen]"""


def allowance(elapsed: float, spent: float) -> float:
    """Return the seconds that trials may still cost.

    Args:
        elapsed: Seconds of the training.
        spent: Seconds that trials took more than the plans held before them would have.
    """
    first = min(elapsed, FIRST_MINUTE)
    return max(0.0, FIRST_SHARE * first + SHARE * (elapsed - first) - spent)


def cost(took: float, steps: int, held: float) -> float:
    """Return the seconds that a window of a trial took more than the plan held before it would have.

    Args:
        took: Seconds of the window.
        steps: Steps of the window.
        held: Seconds of a step of that plan.
    """
    return max(0.0, took - steps * held)


def affordable(worst: float, held: float, left: float) -> bool:
    """Return whether a trial fits into what is left, should each of its steps take as long as it may at worst.

    Args:
        worst: Seconds of a step of the trial, the most that is credible.
        held: Seconds of a step of the plan to go back to.
        left: Allowance that is left, from ``allowance``.
    """
    return (TRIAL_STEPS + LAG_STEPS) * (worst - held) <= left


def step_limit(predicted: float, held: float, left: float) -> float:
    """Return the seconds from which a step ends its trial: three times what is predicted, or more if that fits.

    Args:
        predicted: Seconds of a step of the trial.
        held: See ``affordable``.
        left: See ``affordable``.
    """
    return max(TOO_LONG * predicted, held + left / (TRIAL_STEPS + LAG_STEPS))


def trial(limit: float, back: Plan) -> Trial:
    """Return what a decision carries of its trial.

    Args:
        limit: Limit from ``step_limit``.
        back: The plan that the ranks send once a step took longer.
    """
    return Trial(step_seconds=min(1e9, limit), cf=back.cf, codec=back.codec)
