"""What if: a time model fitted to a trace, and what it predicts for other networks, ranks, codecs and policies.

Needs torch, for the sizes of payloads. Uses no clock and no network.
"""

from gravac.whatif.exchange import UnknownSizes
from gravac.whatif.fit import Fit
from gravac.whatif.fleet import Fleet, GainUnknown
from gravac.whatif.predict import Prediction, Predictor, Scenario, best
from gravac.whatif.recording import NothingRecorded, Recording
from gravac.whatif.simulation import SimulatedRun, Stretch, simulate
from gravac.whatif.timemodel import StepTime, TimeModel

__all__ = [
    "Fit",
    "Fleet",
    "GainUnknown",
    "NothingRecorded",
    "Prediction",
    "Predictor",
    "Recording",
    "Scenario",
    "SimulatedRun",
    "StepTime",
    "Stretch",
    "TimeModel",
    "UnknownSizes",
    "best",
    "simulate",
]
