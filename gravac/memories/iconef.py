"""Improved ConEF: the residual is kept by a composite codec, twice compressed. All else is ConEF."""

from gravac.compressors.base import Compressor
from gravac.memories.conef import ConEFMemory
from gravac.memories.induced import Induced


class IConEF1Memory(ConEFMemory):
    """v1: C(y) + C(y - C(y)), independent draws: noise θ² in place of θ, for twice the bytes. Helps only if θ < 1."""

    name = "iconef-v1"
    source = "Li et al. 2023, Contractive error feedback, iConEF-v1"

    def error_codec(self, compressor: Compressor, cf: float) -> tuple[Compressor, float]:
        return Induced(self._codec, self._codec, self.settings.cf), self.settings.cf


class IConEF2Memory(ConEFMemory):
    """v2: Q(y) + C(y - Q(y)), Q the codec of the wire: noise θ·ρ in place of θ, for Q's payload on top.

    Codecs that learn from what they see cannot be used twice a step; then it is plain ConEF.
    """

    name = "iconef-v2"
    source = "Li et al. 2023, Contractive error feedback, iConEF-v2"

    def error_codec(self, compressor: Compressor, cf: float) -> tuple[Compressor, float]:
        if type(compressor).commit is not Compressor.commit:
            return super().error_codec(compressor, cf)
        return Induced(compressor, self._codec, self.settings.cf), cf
