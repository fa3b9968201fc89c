"""Every element in fewer bits.

Smaller floating point types, summed in float32, and torch's own hook as a peer. int8: integers that can be summed on
the way: one scale for all ranks, and so few levels that no sum overflows. QSGD: levels between 0 and a bucket's norm,
drawn so that their mean is exact (Alistarh et al., NeurIPS 2017). Natural compression: powers of two, drawn so that
their mean is exact (Horvath et al., 2019). signsgd: a vote of the ranks (Bernstein et al., ICML 2018), or scaled signs
where error feedback makes up for what they leave out (Karimireddy et al., ICML 2019). 1-bit SGD: above or below 0, and
the mean of either (Seide et al., Interspeech 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from dynbench.compress.base import Compressor, seed_of, uniform
from dynbench.compress.codec import CHUNK, LEAST, Codec, Field, Fields, Known, Whole, greatest
from dynbench.compress.compressing import feedback_of
from dynbench.compress.mean import CompressedMean, compressor
from dynbench.compress.message import pack, packed_bytes, unpack
from dynbench.errors import UsageError
from dynbench.plugins import compressors
from dynbench.wire.channel import Channel
from dynbench.wire.segment import Segment

if TYPE_CHECKING:
    from dynbench.config.schema import Compress

_FRACTION = 16
"""Bits of a float32 that a bfloat16 lacks."""


class Fp16(Whole):
    """Rounded to 16 bits; what is above 65504 becomes infinite."""

    name = "fp16"
    way = "two_stage"

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        super().__init__(dtype)

    def add(self, payload: Sequence[Tensor], known: Known, total: Tensor, factor: float) -> None:
        """Without a copy in between."""
        total.add_(payload[0], alpha=factor)


class Bf16(Fp16):
    """Rounded to bfloat16.

    Args:
        rounding: to the nearest, or `stochastic`: up or down so that the mean of many draws is exact.
    """

    name = "bf16"

    def __init__(self, rounding: Literal["nearest", "stochastic"] = "nearest") -> None:
        super().__init__(torch.bfloat16)
        self.rounding = rounding

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Rounded."""
        if self.rounding == "nearest":
            super().encode(values, known, out)
            return
        noise = (uniform(seed_of(known.seed, known.rank), values) * 2**_FRACTION).to(torch.int32)
        rounded = ((values.view(torch.int32) + noise) >> _FRACTION << _FRACTION).view(torch.float32)
        out[0].copy_(torch.where(values.isfinite(), rounded, values))


fp16 = compressor(Fp16)


bf16 = compressor(Bf16, compressors.Bf16Options, rounding="rounding")


_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


class Fp8(Codec):
    """Scaled so that the greatest element is the greatest number of the type, and rounded to the nearest.

    Args:
        kind: four bits of exponent and three of fraction, or five and two.
    """

    name = "fp8"
    way = "two_stage"

    def __init__(self, kind: Literal["e4m3", "e5m2"] = "e4m3") -> None:
        self.dtype = _TYPES[kind]

    def fields(self, n: int, known: Known) -> Fields:
        """The greatest element, and all of them."""
        return Field(torch.float32, 1), Field(self.dtype, n)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Rounded."""
        most = greatest(values).clamp(min=LEAST)
        out[0][0] = most
        factor = torch.finfo(self.dtype).max / most
        for start in range(0, len(values), CHUNK):
            out[1][start : start + CHUNK].copy_(values[start : start + CHUNK] * factor)

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Scaled back, from a table of all bytes; where an element was not finite, none is."""
        numbers = torch.arange(2**8, dtype=torch.uint8, device=out.device).view(self.dtype).float()
        numbers *= payload[0] / torch.finfo(self.dtype).max
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            codes = payload[1][start : start + CHUNK].view(torch.uint8)
            torch.index_select(numbers, 0, codes.int(), out=part)


fp8 = compressor(Fp8, compressors.Fp8Options, kind="format")


class Fp16Torch(Compressor):
    """`fp16_compress_hook` on each flat gradient; under `ddp` these are DistributedDataParallel's buckets.

    Its all-reduce is its own, and is counted by what it hands in: two bytes for each element.
    """

    def mean(self, channel: Channel, flat: Tensor, segments: Sequence[Segment]) -> None:
        """Rounded, divided and summed in half precision, and written back."""
        bucket = cast("dist.GradBucket", (flat,))  # type: ignore[name-defined]  # as compiled autograd hands it one
        sent = torch.empty(flat.shape, dtype=torch.float16, device="meta")
        channel.all_reduce_by(lambda: fp16_compress_hook(channel.group, bucket), sent, flat).wait()


class Int8(Codec):
    """Multiples of a step, from minus to plus the greatest element of all ranks, symmetric around 0.

    Of G ranks each has (2**(num_bits - 1) - 1) // G levels on either side. Four bits go two to a byte, from 0 on, so
    that neither half runs over into the other.

    Args:
        num_bits: of an element on the wire.
    """

    name = "int8"
    way = "sum"
    measures = True

    def __init__(self, num_bits: Literal[4, 8] = 8) -> None:
        self.num_bits = num_bits

    def check_ranks(self, ranks: int) -> None:
        """At least two levels on either side."""
        if compressors.int8_levels(self.num_bits, ranks) < 2:
            more_bits_do = compressors.int8_levels(8, ranks) >= 2
            raise UsageError(
                f"compress.num_bits: {self.num_bits} bits have less than 2 levels for each of {ranks} ranks",
                "Set compress.num_bits to 8." if more_bits_do else "Take fp8 or qsgd (compress.name).",
            )

    def fields(self, n: int, known: Known) -> Fields:
        """The levels."""
        if self.num_bits == 8:
            return (Field(torch.int8, n),)
        return (Field(torch.uint8, packed_bytes(n, self.num_bits)),)

    def measure(self, values: Tensor) -> Tensor:
        """The greatest absolute value; infinite where an element is not finite."""
        return greatest(values).nan_to_num(nan=torch.inf, posinf=torch.inf)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """To the nearest level."""
        assert known.number is not None, "agreed on"
        levels = compressors.int8_levels(self.num_bits, known.ranks)
        factor = (levels / known.number.clamp(min=LEAST)).float()
        scratch = torch.empty_like(values[:CHUNK])
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            scaled = torch.mul(part, factor, out=scratch[: len(part)]).round_()
            if self.num_bits == 8:
                out[0][start : start + CHUNK].copy_(scaled)
            else:
                ends = packed_bytes(start, self.num_bits), packed_bytes(start + len(part), self.num_bits)
                pack(scaled.add_(levels).to(torch.uint8), self.num_bits, out[0][slice(*ends)])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Levels times the step; of a sum over ranks the mean."""
        assert known.number is not None, "agreed on"
        levels = compressors.int8_levels(self.num_bits, known.ranks)
        factor = (known.number / (levels * known.summed)).float()
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            if self.num_bits == 8:
                part.copy_(payload[0][start : start + CHUNK])
            else:
                ends = packed_bytes(start, self.num_bits), packed_bytes(start + len(part), self.num_bits)
                part.copy_(unpack(payload[0][slice(*ends)], self.num_bits, len(part))).sub_(levels * known.summed)
            part.mul_(factor)


int8 = compressor(Int8, compressors.Int8Options, num_bits="num_bits")


class Qsgd(Codec):
    """In buckets of elements with the greatest absolute value for a norm, as the paper's own experiments have it.

    Args:
        bits: of an element, its sign among them: 2**(bits - 1) - 1 levels on either side of 0.
        bucket: elements that share a norm.
        contractive: rounded to the nearest level, which is biased, but may be used with error feedback.
    """

    name = "qsgd"

    def __init__(self, bits: Literal[2, 4, 8] = 4, bucket: int = 512, contractive: bool = False) -> None:
        self.bits, self.bucket, self.contractive = bits, bucket, contractive
        self._levels = 2 ** (bits - 1) - 1

    def fields(self, n: int, known: Known) -> Fields:
        """Norms, and signed levels counted from the lowest."""
        return Field(torch.float32, -(-n // self.bucket)), Field(torch.uint8, packed_bytes(n, self.bits))

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Drawn up or down, or to the nearest."""
        table = nn.functional.pad(values, (0, -len(values) % self.bucket)).view(-1, self.bucket)
        norms = table.abs().amax(1, keepdim=True)
        scaled = (table * (self._levels / norms.clamp(min=LEAST))).nan_to_num_(0, 0, 0)
        noise = 0.5 if self.contractive else uniform(seed_of(known.seed, known.rank), scaled)
        codes = scaled.add_(noise).floor_().clamp_(-self._levels, self._levels).add_(self._levels)
        out[0].copy_(norms.view(-1))
        pack(codes.view(-1)[: len(values)].to(torch.uint8), self.bits, out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Levels times the norm; in a bucket with an element that was not finite, none is."""
        norms = payload[0].repeat_interleave(self.bucket)[: len(out)]
        out.copy_(unpack(payload[1], self.bits, len(out))).sub_(self._levels).mul_(norms).div_(self._levels)


qsgd = compressor(Qsgd, compressors.QsgdOptions, bits="bits", bucket="bucket_elements", contractive="contractive")


_STEPS = 127
"""Powers that a byte has beside a sign and 0, from the greatest down."""
_LOWEST, _HIGHEST = -22, 127
"""Exponents of the greatest power: 126 below it there is a number still, and it is one itself."""


class Natural(Codec):
    """A sign and one of 127 powers of two below the greatest element's; what is smaller is drawn to the least or to 0.

    Args:
        contractive: rounded to the nearer power, which is biased, but may be used with error feedback.
    """

    name = "natural"

    def __init__(self, contractive: bool = False) -> None:
        self.contractive = contractive

    def fields(self, n: int, known: Known) -> Fields:
        """The greatest power, and a byte for each element: the sign, and how many powers above 0 it is."""
        return Field(torch.float32, 1), Field(torch.uint8, n)

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """Drawn to one of the two powers beside it, or to the nearer."""
        most = greatest(values)
        top = torch.frexp(most).exponent.clamp(_LOWEST, _HIGHEST)
        out[0][0] = torch.where(most.isfinite(), torch.exp2(top.double()), torch.nan)
        least = torch.exp2((top - _STEPS + 1).double()).float()
        size = values.abs()
        share = size / least
        fraction, exponent = torch.frexp(size)
        noise = 0.5 if self.contractive else uniform(seed_of(known.seed, known.rank), values)
        power = exponent - 1 + (2 * fraction - 1 > noise).int() - (top - _STEPS)
        code = torch.where(share < 1, (share > noise).int(), power).clamp_(0, _STEPS)
        out[1].copy_(code + (values < 0).int() * (_STEPS + 1))

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """From a table of all bytes; where an element was not finite, none is."""
        steps = torch.arange(_STEPS + 1, device=out.device)
        powers = (payload[0].double() * torch.exp2((steps - _STEPS).double())).float()
        powers[0] *= 0
        torch.index_select(torch.cat([powers, -powers]), 0, payload[1].int(), out=out)


natural = compressor(Natural, compressors.ContractiveOptions, contractive="contractive")


class SignSgd(Codec):
    """Signs times the mean absolute value; 0 counts as positive.

    Args:
        vote: of the ranks the sign that has the greater weight of samples, 0 where they are equal, times the mean of
            the ranks' scales; else the mean of what the ranks sent.
    """

    name = "signsgd"
    leaves_out = True

    def __init__(self, vote: bool = True) -> None:
        self.vote = vote

    def fields(self, n: int, known: Known) -> Fields:
        """The scale and the rank's weight, and a bit for each element, 1 for negative."""
        return Field(torch.float32, 2), Field(torch.uint8, packed_bytes(n, 1))

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """All in one scale."""
        out[0][0] = torch.linalg.vector_norm(values, 1) / len(values)
        out[0][1] = known.weight
        pack((values < 0).view(torch.uint8), 1, out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """Plus or minus the scale; where an element was not finite, no number or infinite."""
        scale = payload[0][0]
        out.copy_(unpack(payload[1], 1, len(out))).mul_(-2 * scale).add_(scale)

    def mean_of(self, payloads: Sequence[Sequence[Tensor]], known: Known, out: Tensor) -> None:
        """The vote, or the mean."""
        if not self.vote:
            super().mean_of(payloads, known, out)
            return
        out.zero_()
        for scales, signs in payloads:
            out.sub_(unpack(signs, 1, len(out)) * (2 * scales[1])).add_(scales[1])
        out.sign_().mul_(torch.stack([scales[0] for scales, _ in payloads]).mean())


def signsgd(settings: Compress | None = None) -> CompressedMean:
    """The compressor `signsgd`."""
    return CompressedMean.from_settings(SignSgd(vote=not feedback_of(settings, SignSgd.leaves_out)), settings)


class OneBit(Codec):
    """Of a parameter the mean of what is not negative, the mean of what is, and a bit for each element."""

    name = "onebit"
    leaves_out = True

    def fields(self, n: int, known: Known) -> Fields:
        """Both means, and a bit for each element, 1 for negative."""
        return Field(torch.float32, 2), Field(torch.uint8, packed_bytes(n, 1))

    def encode(self, values: Tensor, known: Known, out: Sequence[Tensor]) -> None:
        """A mean of nothing is 0."""
        negative = values < 0
        count = negative.sum()
        below = torch.where(negative, values, 0).sum()
        out[0][0] = (values.sum() - below) / (len(values) - count).clamp(min=1)
        out[0][1] = below / count.clamp(min=1)
        pack(negative.view(torch.uint8), 1, out[1])

    def decode(self, payload: Sequence[Tensor], known: Known, out: Tensor) -> None:
        """One mean or the other."""
        above, below = payload[0]
        out.copy_(torch.where(unpack(payload[1], 1, len(out)).bool(), below, above))


onebit = compressor(OneBit)
