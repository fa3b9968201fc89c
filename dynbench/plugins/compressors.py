"""The compressors: what travels in place of a gradient, with their options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dynbench.plugins.registry import Auto, Entry, NonNegativeFloat, NonNegativeInt, PositiveInt, Registry, Section


class FeedbackOptions(Section):
    """Of compressors that leave something out."""

    error_feedback: bool | Auto = "auto"
    """Keep what compression left out and add it to the next gradient; auto does so where much is left out. Unbiased
    forms diverge with it (compress.contractive)."""


class CompressionOptions(FeedbackOptions):
    """Of all compressors of dynbench."""

    start_step: NonNegativeInt = 0
    """How often every parameter is averaged as it is before anything is compressed; these steps count in no ratio."""
    min_elements: NonNegativeInt = 1024
    """Parameters of fewer elements, as biases, are sent as they are."""
    shared_seed: NonNegativeInt = 0
    """Of what is drawn, equal on all ranks."""
    error_every: NonNegativeInt = 0
    """Steps of which the error of one is measured against the mean of the whole gradients, by an all-reduce that is not
    counted but takes its time; 0 measures none."""


class ContractiveOptions(CompressionOptions):
    """Of compressors that are unbiased, or else may be used with error feedback."""

    contractive: bool = False
    """The form for error feedback: rounded to the nearest, or elements as they are, in place of the unbiased one."""


class RatioOptions(CompressionOptions):
    """Of compressors that send some of the elements."""

    ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Of a parameter's elements, the share that is sent."""


class RandomKOptions(RatioOptions, ContractiveOptions):
    """Of elements drawn at random."""


class SketchOptions(RatioOptions):
    """Of count sketches."""

    sketch_rows: PositiveInt = 5
    """Hash functions of a sketch."""
    sketch_columns: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Buckets of each, as a share of the parameter's elements."""


class ThresholdOptions(CompressionOptions):
    """Of elements above a size."""

    threshold: NonNegativeFloat = 1e-3
    """Elements whose absolute value is below it are not sent."""


class Bf16Options(CompressionOptions):
    """Of bfloat16."""

    rounding: Literal["nearest", "stochastic"] = "nearest"
    """To the nearest number, or drawn so that the mean of many draws is exact."""


class Int8Options(CompressionOptions):
    """Of integers."""

    num_bits: Literal[4, 8] = 8
    """Bits of an element on the wire."""


class Fp8Options(CompressionOptions):
    """Of eight-bit floating point."""

    format: Literal["e4m3", "e5m2"] = "e4m3"
    """Bits of exponent and of fraction."""


class PowerSgdOptions(CompressionOptions):
    """Of products of narrow matrices."""

    rank: PositiveInt = 2
    """Columns of the narrow matrices."""


class GradiVeqOptions(CompressionOptions):
    """Of slices along their principal directions."""

    slice_elements: PositiveInt = 64
    """Neighbouring elements of a parameter that are projected together."""
    components: PositiveInt = 16
    """Directions that are sent of each slice; fewer than it has elements."""
    refresh_every: PositiveInt = 20
    """Averages of a parameter between two searches for its directions."""


class QsgdOptions(ContractiveOptions):
    """Of levels in buckets."""

    bits: Literal[2, 4, 8] = 4
    """Bits of an element, its sign among them."""
    bucket_elements: PositiveInt = 512
    """Elements that share a norm."""


class TopKInt8Options(RatioOptions, Int8Options):
    """Of the greatest elements as integers."""


class TopKQsgdOptions(RatioOptions, QsgdOptions):
    """Of the greatest elements in levels."""


class RandomKQsgdOptions(RandomKOptions, QsgdOptions):
    """Of drawn elements in levels."""


def int8_levels(num_bits: int, ranks: int) -> int:
    """Levels on either side of 0 that each of the ranks has, so that their sum does not overflow."""
    return ((1 << num_bits - 1) - 1) // ranks


@dataclass(frozen=True)
class CompressorEntry(Entry):
    """A subclass of `dynbench.compress.base.Compressor`, called with the `compress` section.

    Args:
        compresses: False where gradients are sent as they are, without a queue.
        paper: where it comes from.
        variant: of what the paper describes, what is done here.
        bias: no, yes, or what it depends on: whether the mean of many draws differs from what is compressed.
        collectives: what carries it, of a whole mean and of a shard.
        extra: collectives beside these.
        indices: how it is written which elements are sent.
        feedback: whether `error_feedback: auto` is on.
    """

    base: ClassVar[str] = "dynbench.compress.base:Compressor"
    compresses: bool = True
    paper: str = ""
    variant: str = ""
    bias: str = ""
    collectives: str = ""
    extra: str = "none"
    indices: str = "none"
    feedback: bool = False


_GAPS = "gaps of 1 or 2 bytes, or a bit for each element, whichever is less"
_GATHERED = "all-gather; all-to-all of a shard"
_STAGES = "all-to-all, sum in float32, all-gather; the first of them of a shard"
_SUMMED = "all-reduce; reduce-scatter of a shard"
_NATURAL = CompressorEntry(
    "natural",
    "powers of two in a byte, drawn so that their mean is exact",
    "dynbench.compress.quantised:natural",
    ContractiveOptions,
    paper="Horvath et al., Natural Compression for Distributed Deep Learning, 2019",
    variant="127 powers below the greatest of a parameter",
    bias="no; yes where compress.contractive",
    collectives=_GATHERED,
)
_THRESHOLD = CompressorEntry(
    "threshold",
    "the elements above a fixed size, with their indices",
    "dynbench.compress.sparse:threshold",
    ThresholdOptions,
    paper="Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015",
    variant="elements in full, and zeros where a rank has fewer than another",
    bias="yes",
    collectives=_GATHERED,
    extra="all-reduce of the greatest number of elements",
    indices=_GAPS,
    feedback=True,
)

PIPELINES: Mapping[str, type[CompressionOptions]] = {
    "topk+fp16": RatioOptions,
    "topk+int8": TopKInt8Options,
    "topk+qsgd": TopKQsgdOptions,
    "randomk+fp16": RandomKOptions,
    "randomk+qsgd": RandomKQsgdOptions,
    "threshold+fp16": ThresholdOptions,
}
"""Which elements are sent, and how they are written, each by a compressor of its own."""


def _pipelines(entries: Sequence[CompressorEntry]) -> Iterator[CompressorEntry]:
    by_name = {entry.name: entry for entry in entries}
    for name, options in PIPELINES.items():
        first, second = (by_name[part] for part in name.split("+"))
        yield replace(
            first,
            name=name,
            summary=f"{first.summary}, written as {second.name} does",
            target="dynbench.compress.pipeline:pipeline",
            options=options,
            paper=f"{first.paper}; {second.paper}",
            variant="both in their contractive forms with error feedback",
            bias=f"{first.name}: {first.bias}; {second.name}: {second.bias}",
            collectives=_GATHERED,
        )


_SINGLE = (
    CompressorEntry(
        "none",
        "gradients travel as they are",
        "dynbench.compress.base:uncompressed",
        compresses=False,
        bias="no",
        collectives="all-reduce; reduce-scatter of a shard",
    ),
    CompressorEntry(
        "fp16",
        "rounded to half precision, summed in float32",
        "dynbench.compress.quantised:fp16",
        CompressionOptions,
        paper="Micikevicius et al., Mixed Precision Training, ICLR 2018",
        variant="each way rounded once",
        bias="rounding only",
        collectives=_STAGES,
    ),
    CompressorEntry(
        "fp16_torch",
        "torch's fp16_compress_hook, as its DistributedDataParallel takes it: rounded and summed in half precision",
        "dynbench.compress.quantised:Fp16Torch",
        paper="Micikevicius et al., Mixed Precision Training, ICLR 2018",
        variant="torch's own function, a bucket after the other; a shard is cut from the whole mean",
        bias="rounding only",
        collectives="all-reduce in half precision",
    ),
    CompressorEntry(
        "bf16",
        "rounded to bfloat16, to the nearest or stochastically, summed in float32",
        "dynbench.compress.quantised:bf16",
        Bf16Options,
        paper="Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019",
        variant="each way rounded once",
        bias="rounding only; no where compress.rounding is stochastic",
        collectives=_STAGES,
    ),
    CompressorEntry(
        "int8",
        "integers of 8 or 4 bits with one scale for all ranks, summed on the way without overflow",
        "dynbench.compress.quantised:int8",
        Int8Options,
        paper="Sapio et al., Scaling Distributed Machine Learning with In-Network Aggregation, NSDI 2021",
        variant="a scale for each parameter, 127 // ranks levels on either side of 0",
        bias="rounding only",
        collectives=_SUMMED,
        extra="all-reduce of the greatest elements",
    ),
    CompressorEntry(
        "fp8",
        "eight-bit floating point with a scale for each parameter, summed in float32",
        "dynbench.compress.quantised:fp8",
        Fp8Options,
        paper="Micikevicius et al., FP8 Formats for Deep Learning, 2022",
        variant="each way rounded once, sent as bytes",
        bias="rounding only",
        collectives=_STAGES,
    ),
    CompressorEntry(
        "qsgd",
        "levels of 2, 4 or 8 bits in buckets, drawn so that their mean is exact",
        "dynbench.compress.quantised:qsgd",
        QsgdOptions,
        paper="Alistarh et al., QSGD, NeurIPS 2017",
        variant="buckets scaled by their greatest element",
        bias="no; yes where compress.contractive",
        collectives=_GATHERED,
    ),
    _NATURAL,
    replace(_NATURAL, name="nc", summary="natural by its other name"),
    CompressorEntry(
        "topk",
        "the greatest elements of every parameter, each rank's own, with their indices",
        "dynbench.compress.sparse:topk",
        RatioOptions,
        paper="Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
        variant="exact, for each parameter",
        bias="yes",
        collectives=_GATHERED,
        indices=_GAPS,
        feedback=True,
    ),
    CompressorEntry(
        "randomk",
        "elements drawn alike on all ranks, without indices",
        "dynbench.compress.sparse:randomk",
        RandomKOptions,
        paper="Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
        variant="without replacement, from a shared seed, for each parameter",
        bias="no; yes where compress.contractive",
        collectives=_SUMMED,
        indices="none: the ranks draw the same",
    ),
    _THRESHOLD,
    replace(_THRESHOLD, name="thresholdv", summary="threshold by its other name"),
    CompressorEntry(
        "powersgd",
        "a product of two narrow matrices for each parameter of two or more dimensions",
        "dynbench.compress.powersgd:powersgd",
        PowerSgdOptions,
        paper="Vogels et al., PowerSGD, NeurIPS 2019",
        variant="one step of power iteration from the last result; a shard is cut from the whole mean",
        bias="yes",
        collectives="all-reduce of either matrix",
        extra="all-reduce of what is sent whole",
        feedback=True,
    ),
    CompressorEntry(
        "gradiveq",
        "slices of every parameter along their first principal directions, which are found anew every few steps",
        "dynbench.compress.gradiveq:gradiveq",
        GradiVeqOptions,
        paper="Yu et al., GradiVeQ, NeurIPS 2018",
        variant="directions from the second moments of all ranks' slices; a shard is cut from the whole mean",
        bias="yes",
        collectives="all-reduce of the parts along them",
        extra="all-reduce of second moments and of directions where these are due; of what is sent whole",
        feedback=True,
    ),
    CompressorEntry(
        "sketch",
        "the elements that are greatest in a sum of count sketches, averaged exactly",
        "dynbench.compress.sketch:sketch",
        SketchOptions,
        paper="Ivkin et al., Communication-efficient Distributed SGD with Sketching, NeurIPS 2019",
        variant="a sketch for each parameter; a shard is cut from the whole mean",
        bias="yes",
        collectives="all-reduce of sketches, all-reduce of the elements found",
        extra="all-reduce of what is sent whole",
        indices="none: the ranks find the same",
        feedback=True,
    ),
    CompressorEntry(
        "signsgd",
        "a bit for each element: a vote weighted by samples, or scaled signs with error feedback",
        "dynbench.compress.quantised:signsgd",
        CompressionOptions,
        paper="Bernstein et al., signSGD, ICML 2018; Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019",
        variant="times the mean absolute value of each parameter; 0 is positive, a tied vote gives 0",
        bias="yes",
        collectives=_GATHERED,
        feedback=True,
    ),
    CompressorEntry(
        "onebit",
        "a bit for each element, and the means of what is above and below 0",
        "dynbench.compress.quantised:onebit",
        CompressionOptions,
        paper="Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014",
        variant="means for each parameter",
        bias="yes",
        collectives=_GATHERED,
        feedback=True,
    ),
)

COMPRESSORS: Registry[CompressorEntry] = Registry(
    "compressor", "compress.name", (*_SINGLE, *_pipelines(_SINGLE)), shared=FeedbackOptions
)
