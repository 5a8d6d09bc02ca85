"""The model of a step's time: its terms, fitted to a trace or taken from tables, and what it predicts elsewhere.

It needs torch, for the sizes of payloads, and uses no clock and no network.
"""

from gravac.predict.exchange import UnknownSizes
from gravac.predict.fit import Fit
from gravac.predict.fleet import Fleet, GainUnknown
from gravac.predict.predictor import Prediction, Predictor, Scenario, best
from gravac.predict.recording import NothingRecorded, Recording
from gravac.predict.simulation import SimulatedRun, Stretch, simulate
from gravac.predict.timemodel import StepTime, TimeModel

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
