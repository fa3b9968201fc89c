"""The options of the compressors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dynbench.plugins.section import Auto, NonNegativeFloat, NonNegativeInt, PositiveInt, Section


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
