"""No memory: what is not sent is lost."""

from collections.abc import Collection

from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import Bucket, Memory
from gravac.memories.states import to_dense


class NoMemory(Memory):
    """Holds nothing: what is not sent is lost. The baseline of error feedback.

    Loading a state with residuals raises ValueError.
    """

    name = "none"
    source = "compressed SGD without feedback"
    exact = False

    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        return gradient

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        return None

    def hold_back(self, bucket: Bucket, excess: Tensor) -> None:
        return

    def has_residual(self, bucket: Bucket) -> bool:
        return False

    def forget(self, names: Collection[str]) -> None:
        return

    def commit(self) -> None:
        return

    def rollback(self) -> None:
        return

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        self._factor(factor)

    def nbytes(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        residuals = to_dense(state)
        if residuals:
            raise ValueError(
                f"memory='none' cannot hold the residual of {len(residuals)} parameters; use memory='residual'"
            )
