"""Codecs, one family per file. To add one, write its file and name its class in ``COMPRESSORS`` (CONTRIBUTING.md)."""

from gravac.codec_text import selector_of, split_settings, values_of
from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec, Traits, kept_count
from gravac.compressors.countsketch import CountSketch, HeavyHitters, MedianCountSketch
from gravac.compressors.dense import BF16, FP16, Dense
from gravac.compressors.lowrank.atomo import Atomo
from gravac.compressors.lowrank.svd import SVD
from gravac.compressors.quantize.dither import Dither, SubtractiveDither
from gravac.compressors.quantize.elias import EliasQSGD
from gravac.compressors.quantize.natural import Natural
from gravac.compressors.quantize.nearest import Nearest
from gravac.compressors.quantize.nuqsgd import NUQSGD
from gravac.compressors.quantize.qsgd import QSGD, Int4, Int8
from gravac.compressors.quantize.sign import BlockSign, OneBit, ScaledSign
from gravac.compressors.quantize.terngrad import ClippedTernGrad, TernGrad
from gravac.compressors.quantize.twobit import TwoBit
from gravac.compressors.sparse.bernoulli import Bernoulli, UnbiasedBernoulli
from gravac.compressors.sparse.chunktopk import ChunkTopK
from gravac.compressors.sparse.hardthreshold import HardThreshold, WarmedThreshold
from gravac.compressors.sparse.mstopk import MSTopk
from gravac.compressors.sparse.randomk import BlockRandomK, RandomK, UnbiasedBlockRandomK, UnbiasedRandomK
from gravac.compressors.sparse.thresholds import DGC, RedSync, SIDCo
from gravac.compressors.sparse.topk import TopK, TrimmedTopK
from gravac.compressors.stack import SparseLoCo, Stack, TopKInt8
from gravac.registry import Registry

COMPRESSORS: Registry[Compressor] = Registry(
    "compressor",
    (
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
        BlockSign,
        TwoBit,
        TernGrad,
        ClippedTernGrad,
        QSGD,
        EliasQSGD,
        Natural,
        NUQSGD,
        Int8,
        Int4,
        Nearest,
        Dither,
        SubtractiveDither,
        FP16,
        BF16,
        SVD,
        Atomo,
        CountSketch,
        MedianCountSketch,
        HeavyHitters,
        TopKInt8,
        SparseLoCo,
        MSTopk,
        ChunkTopK,
    ),
    base=Compressor,
    group="gravac.compressors",
)


def build(text: str) -> Compressor:
    """Build a codec from ``name``, ``name:setting=value,setting=value``, or ``selector+quantizer``.

    Args:
        text: For example ``topk``, ``qsgd:bits=4,norm=l2``, ``randomk+int4:block=64``.

    Raises:
        ValueError: There is no such codec, setting or value. The message names what is allowed.
    """
    if "+" in text and split_settings(text)[0] not in COMPRESSORS:
        return Stack(build(selector_of(text)), build(values_of(text)))
    return COMPRESSORS.build(text)


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
