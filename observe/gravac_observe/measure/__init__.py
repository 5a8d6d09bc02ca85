"""Measures what steps spend on communication, by purpose and group."""

from gravac_observe.measure.measurement import Gradients, Measurement, Row, measure

__all__ = ["Gradients", "Measurement", "Row", "measure"]
