"""The compressors: what travels in place of a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dynbench.plugins.compressor_options import (
    Bf16Options,
    CompressionOptions,
    ContractiveOptions,
    FeedbackOptions,
    Fp8Options,
    GradiVeqOptions,
    Int8Options,
    PowerSgdOptions,
    QsgdOptions,
    RandomKOptions,
    RandomKQsgdOptions,
    RatioOptions,
    SketchOptions,
    ThresholdOptions,
    TopKInt8Options,
    TopKQsgdOptions,
)
from dynbench.plugins.registry import Entry, Registry


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
    "dynbench.compress.natural:natural",
    ContractiveOptions,
    paper="Horvath et al., Natural Compression for Distributed Deep Learning, 2019",
    variant="127 powers below the greatest of a parameter",
    bias="no; yes where compress.contractive",
    collectives=_GATHERED,
)
_THRESHOLD = CompressorEntry(
    "threshold",
    "the elements above a fixed size, with their indices",
    "dynbench.compress.threshold:threshold",
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
        "dynbench.compress.cast:fp16",
        CompressionOptions,
        paper="Micikevicius et al., Mixed Precision Training, ICLR 2018",
        variant="each way rounded once",
        bias="rounding only",
        collectives=_STAGES,
    ),
    CompressorEntry(
        "fp16_torch",
        "torch's fp16_compress_hook, as its DistributedDataParallel takes it: rounded and summed in half precision",
        "dynbench.compress.torch_hook:Fp16Torch",
        paper="Micikevicius et al., Mixed Precision Training, ICLR 2018",
        variant="torch's own function, a bucket after the other; a shard is cut from the whole mean",
        bias="rounding only",
        collectives="all-reduce in half precision",
    ),
    CompressorEntry(
        "bf16",
        "rounded to bfloat16, to the nearest or stochastically, summed in float32",
        "dynbench.compress.cast:bf16",
        Bf16Options,
        paper="Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019",
        variant="each way rounded once",
        bias="rounding only; no where compress.rounding is stochastic",
        collectives=_STAGES,
    ),
    CompressorEntry(
        "int8",
        "integers of 8 or 4 bits with one scale for all ranks, summed on the way without overflow",
        "dynbench.compress.int8:int8",
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
        "dynbench.compress.fp8:fp8",
        Fp8Options,
        paper="Micikevicius et al., FP8 Formats for Deep Learning, 2022",
        variant="each way rounded once, sent as bytes",
        bias="rounding only",
        collectives=_STAGES,
    ),
    CompressorEntry(
        "qsgd",
        "levels of 2, 4 or 8 bits in buckets, drawn so that their mean is exact",
        "dynbench.compress.qsgd:qsgd",
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
        "dynbench.compress.topk:topk",
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
        "dynbench.compress.randomk:randomk",
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
        "dynbench.compress.signsgd:signsgd",
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
        "dynbench.compress.onebit:onebit",
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
