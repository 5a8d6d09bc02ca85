"""What if: a time model fitted from a trace, and what it says of other networks, ranks, codecs and policies.

Needs torch, for the sizes of payloads; no clock and no network.
"""

from gravac.whatif.exchange import UnknownSizes
from gravac.whatif.fit import Fit
from gravac.whatif.fleet import Fleet, GainUnknown
from gravac.whatif.path import Path, Stretch, walk
from gravac.whatif.predict import Foretold, Oracle, Scenario, best
from gravac.whatif.recording import NothingRecorded, Recording, record
from gravac.whatif.timemodel import StepTime, TimeModel

__all__ = [
    "Fit",
    "Fleet",
    "Foretold",
    "GainUnknown",
    "NothingRecorded",
    "Oracle",
    "Path",
    "Recording",
    "Scenario",
    "StepTime",
    "Stretch",
    "TimeModel",
    "UnknownSizes",
    "best",
    "record",
    "walk",
]
