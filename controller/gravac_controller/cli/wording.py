"""How the command line formats numbers, times, sizes and paths."""

from datetime import datetime

from gravac.protocol import Decision, LinkSpec
from gravac.wording import plan_in_words


def size(count: float) -> str:
    """Bytes with three digits: 982 B, 4.21 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def seconds(value: float | None) -> str:
    """A duration in milliseconds or seconds; – when unknown."""
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def dense_step(measured: float | None, predicted: float | None) -> str:
    """The duration of a dense step: dense 1.10 s, or dense 480 ms predicted; dense – when unknown."""
    if measured is None and predicted is not None:
        return f"dense {seconds(predicted)} predicted"
    return f"dense {seconds(measured)}"


def clock(unix_seconds: float) -> str:
    """The local time of day."""
    return datetime.fromtimestamp(unix_seconds).strftime("%H:%M:%S")


def number(value: float | None) -> str:
    """Three significant digits; – when unknown."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(likely: float | None, low: float | None, high: float | None) -> str:
    """An estimate with its range, 0.88 (0.83–0.93); the estimate alone where there is no range; – when unknown."""
    if likely is None or low is None or high is None or low == high:
        return number(likely)
    return f"{number(likely)} ({number(low)}–{number(high)})"


def factor(cf: float) -> str:
    """``dense`` or the compression factor."""
    return "dense" if cf == 1.0 else f"{cf:g}"


def plan(decision: Decision, compressor: str) -> str:
    """The plan of a decision: its codec, or the job's compressor, and the candidate CF."""
    return plan_in_words(decision.codec or compressor, decision.cf_candidate)


def times(numerator: float | None, denominator: float | None) -> str:
    """The ratio as 5.00x; – when unknown."""
    if numerator is None or not denominator:
        return "–"
    return f"{numerator / denominator:.2f}x"


def link(spec: LinkSpec | None) -> str:
    """The network that a job ran on."""
    if spec is None:
        return "the real network of this machine (loopback)"
    rate = spec.bits_per_second
    unit = next((f"{rate / scale:g} {name}" for name, scale in _RATES if rate >= scale), f"{rate:g} bit/s")
    return f"EMULATED {unit}: transfers are delayed as on such a link, the real network is faster"


_RATES = (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3))
