"""What travels in place of a gradient: one compressor a file, named in `dynbench/plugins/compressors.py`.

The classes exported here are for any training loop on plain torch, over its default process group:

    from dynbench.compress import CompressedMean, TopK
    from dynbench.wire.channel import Channel
    from dynbench.wire.segment import lay_out

    compressed, channel = CompressedMean(TopK(ratio=0.01)), Channel()
    compressed.mean(channel, flat, lay_out([("weight", [512, 512]), ("bias", [512])]))

`codec.py` says how one of them is used without other ranks. They are imported when they are first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynbench.compress.base import Sparse
    from dynbench.compress.cast import Bf16, Fp16
    from dynbench.compress.codec import Codec, Known, Payload, Whole
    from dynbench.compress.fp8 import Fp8
    from dynbench.compress.gradiveq import GradiVeq
    from dynbench.compress.int8 import Int8
    from dynbench.compress.mean import CompressedMean
    from dynbench.compress.natural import Natural
    from dynbench.compress.onebit import OneBit
    from dynbench.compress.pipeline import Pipeline
    from dynbench.compress.powersgd import PowerSgd
    from dynbench.compress.qsgd import Qsgd
    from dynbench.compress.randomk import RandomK
    from dynbench.compress.signsgd import SignSgd
    from dynbench.compress.sketch import Sketch
    from dynbench.compress.threshold import Threshold
    from dynbench.compress.topk import TopK

_MODULES = {
    "Bf16": "cast",
    "Codec": "codec",
    "CompressedMean": "mean",
    "Fp8": "fp8",
    "Fp16": "cast",
    "GradiVeq": "gradiveq",
    "Int8": "int8",
    "Known": "codec",
    "Natural": "natural",
    "OneBit": "onebit",
    "Payload": "codec",
    "Pipeline": "pipeline",
    "PowerSgd": "powersgd",
    "Qsgd": "qsgd",
    "RandomK": "randomk",
    "SignSgd": "signsgd",
    "Sketch": "sketch",
    "Sparse": "base",
    "Threshold": "threshold",
    "TopK": "topk",
    "Whole": "codec",
}

__all__ = [
    "Bf16",
    "Codec",
    "CompressedMean",
    "Fp8",
    "Fp16",
    "GradiVeq",
    "Int8",
    "Known",
    "Natural",
    "OneBit",
    "Payload",
    "Pipeline",
    "PowerSgd",
    "Qsgd",
    "RandomK",
    "SignSgd",
    "Sketch",
    "Sparse",
    "Threshold",
    "TopK",
    "Whole",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
