"""Signals: gain, the spectrum of gains over CFs, gradient diversity, figures of a window report, and risk."""
