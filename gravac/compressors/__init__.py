"""Codecs: one a file. To add one, write its file and name it in ``_MEMBERS``; the property suite finds it here."""

from gravac.compressors import spec
from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec, Traits, kept_count
from gravac.compressors.countsketch import CountSketch, HeavyHitters, MedianCountSketch
from gravac.compressors.dense import BF16, FP16, Dense
from gravac.compressors.lowrank.atomo import Atomo
from gravac.compressors.lowrank.svd import SVD
from gravac.compressors.quantize.elias import EliasQSGD
from gravac.compressors.quantize.natural import Natural
from gravac.compressors.quantize.nuqsgd import NUQSGD
from gravac.compressors.quantize.qsgd import QSGD, Int4, Int8
from gravac.compressors.quantize.sign import OneBit, ScaledSign
from gravac.compressors.quantize.terngrad import ClippedTernGrad, TernGrad
from gravac.compressors.sparse.bernoulli import Bernoulli, UnbiasedBernoulli
from gravac.compressors.sparse.hardthreshold import HardThreshold, WarmedThreshold
from gravac.compressors.sparse.randomk import BlockRandomK, RandomK, UnbiasedBlockRandomK, UnbiasedRandomK
from gravac.compressors.sparse.thresholds import DGC, RedSync, SIDCo
from gravac.compressors.sparse.topk import TopK, TrimmedTopK
from gravac.compressors.stack import Stack, TopKInt8
from gravac.wording import did_you_mean

_MEMBERS: tuple[type[Compressor], ...] = (
    Dense,
    TopK,
    RandomK,
    UnbiasedRandomK,
    BlockRandomK,
    UnbiasedBlockRandomK,
    Bernoulli,
    UnbiasedBernoulli,
    HardThreshold,
    WarmedThreshold,
    DGC,
    RedSync,
    TrimmedTopK,
    SIDCo,
    ScaledSign,
    OneBit,
    TernGrad,
    ClippedTernGrad,
    QSGD,
    EliasQSGD,
    Natural,
    NUQSGD,
    Int8,
    Int4,
    FP16,
    BF16,
    SVD,
    Atomo,
    CountSketch,
    MedianCountSketch,
    HeavyHitters,
    TopKInt8,
)

COMPRESSORS: dict[str, type[Compressor]] = {codec.name: codec for codec in _MEMBERS}


def build(text: str) -> Compressor:
    """The codec that ``text`` describes: ``name``, ``name:setting=value,setting=value``, or ``selector+quantizer``.

    Examples: ``topk``, ``qsgd:bits=4,norm=l2``, ``randomk+int4:block=64``. Raises ValueError naming what is known.
    """
    if "+" in text and text.partition(":")[0] not in COMPRESSORS:
        selector, _, quantizer = text.partition("+")
        return Stack(build(selector), build(quantizer))
    name, settings = spec.split(text)
    if name not in COMPRESSORS:
        raise ValueError(
            f"compressor={name!r} is unknown{did_you_mean(name, COMPRESSORS)}; choose one of "
            f"{', '.join(sorted(COMPRESSORS))}"
        )
    return spec.make(COMPRESSORS[name], text, settings)


__all__ = [
    "COMPRESSORS",
    "Bound",
    "Compressor",
    "Dense",
    "Key",
    "Payload",
    "RandomK",
    "Stack",
    "TensorSpec",
    "TopK",
    "Traits",
    "UnbiasedRandomK",
    "build",
    "kept_count",
]
