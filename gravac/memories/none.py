"""No memory: what is not sent is lost."""

from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import BucketMemory, Memory


class NoPart(BucketMemory):
    """The part of one bucket, which holds nothing."""

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        return gradient

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        return None

    def hold_back(self, excess: Tensor) -> None:
        return


class NoMemory(Memory):
    """Holds nothing: what is not sent is lost. The baseline of error feedback.

    Loading a state with residuals raises ValueError.
    """

    name = "none"
    source = "compressed SGD without feedback"
    exact = False
    part = NoPart

    def pieces_of(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        if residuals := super().pieces_of(state):
            raise ValueError(
                f"memory='none' cannot hold the residual of {len(residuals)} parameters; use memory='residual'"
            )
        return {}
