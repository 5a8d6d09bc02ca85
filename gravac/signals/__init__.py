"""Signals: gain, the spectrum of gains, gradient diversity, slope of the loss, figures of a window report, and risk."""
