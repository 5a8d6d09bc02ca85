"""What a step's time consists of, for every prediction: those of ``auto``, and those of ``gravac.predict``. Pure.

    step = compute + compress + exposed + decompress
    exposed = waiting + max(last · T, T - hidden)

T is the time of the exchange without overlap. It overlaps with backward for at most ``hidden`` seconds, and with the
encoding of later buckets. The last bucket's share of it (``last``) overlaps with neither. ``waiting`` is the wait of
every step, such as for slower ranks. ``gravac.predict.timemodel`` has the terms of T, and what they are fitted to;
``gravac.policies.auto.beliefs`` learns the line of a running job: T from its bytes, and of waiting and hidden what they
come to together.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Parts of one step in seconds. They add up to ``seconds``, which is never 0.

    Attributes:
        compute: Forward, backward and optimizer.
        compress: Encoding.
        exposed: What the step waits for the exchange.
        decompress: Decoding.
    """

    compute: float
    compress: float
    exposed: float
    decompress: float

    @property
    def seconds(self) -> float:
        return max(1e-9, self.compute + self.compress + self.exposed + self.decompress)


def exposed(transfer: float, hidden: float, last: float = 0.0) -> float:
    """Return the seconds that a step waits for a transfer.

    Args:
        transfer: Seconds of the exchange without overlap.
        hidden: Most of it that overlaps with other work. Below 0 it is a wait that comes on top.
        last: Share of the transfer that overlaps with nothing.
    """
    return max(last * transfer, transfer - hidden)
