"""How numbers are written in reasons: for people, and the same on every platform."""


def cf(value: float) -> str:
    """``dense`` or ``CF 40``."""
    return "dense" if value == 1.0 else f"CF {value:g}"


def number(value: float) -> str:
    """A rate with about three digits that count, never an exponent below a million million."""
    if value >= 99.95 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def kept(gain: float) -> str:
    """A gain: two decimals, three below 0.1, where they matter."""
    return f"{gain:.2f}" if gain >= 0.1 else f"{gain:.3f}"


def percent(ratio: float) -> str:
    """A ratio as per cent, one decimal below 10 unless it is whole."""
    value = ratio * 100
    text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return f"{text.removesuffix('.0')} %"
