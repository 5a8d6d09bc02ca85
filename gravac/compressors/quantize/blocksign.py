"""Block sign: one bit per element, and the mean magnitude of each block."""

from gravac.compressors.quantize.nearest import Nearest


class BlockSign(Nearest):
    """Sends the sign of every element, and the mean magnitude of each block of 64 as bfloat16. For error feedback.

    One bit per element and 16 per block: a wire CF of 25.6 whatever is asked for. The scaled sign has one scale per
    tensor, which fits less well where magnitudes differ within it. The same as ``nearest:levels=2``.
    """

    name = "blocksign"
    source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 1, for each block"
    examples: tuple[str, ...] = ("block=16",)

    def __init__(self, *, block: int = 64) -> None:
        super().__init__(levels=2, block=block)
