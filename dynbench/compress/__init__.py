"""What travels in place of a gradient: compressors of a kind in a file, named in `dynbench/plugins/compressors.py`.

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
    from dynbench.compress.codec import Codec as Codec
    from dynbench.compress.codec import Known as Known
    from dynbench.compress.codec import Payload as Payload
    from dynbench.compress.codec import Whole as Whole
    from dynbench.compress.gradiveq import GradiVeq as GradiVeq
    from dynbench.compress.mean import CompressedMean as CompressedMean
    from dynbench.compress.pipeline import Pipeline as Pipeline
    from dynbench.compress.powersgd import PowerSgd as PowerSgd
    from dynbench.compress.quantised import Bf16 as Bf16
    from dynbench.compress.quantised import Fp8 as Fp8
    from dynbench.compress.quantised import Fp16 as Fp16
    from dynbench.compress.quantised import Int8 as Int8
    from dynbench.compress.quantised import Natural as Natural
    from dynbench.compress.quantised import OneBit as OneBit
    from dynbench.compress.quantised import Qsgd as Qsgd
    from dynbench.compress.quantised import SignSgd as SignSgd
    from dynbench.compress.sketch import Sketch as Sketch
    from dynbench.compress.sparse import RandomK as RandomK
    from dynbench.compress.sparse import Sparse as Sparse
    from dynbench.compress.sparse import Threshold as Threshold
    from dynbench.compress.sparse import TopK as TopK

_MODULES = {
    "codec": "Codec Known Payload Whole",
    "gradiveq": "GradiVeq",
    "mean": "CompressedMean",
    "pipeline": "Pipeline",
    "powersgd": "PowerSgd",
    "quantised": "Bf16 Fp16 Fp8 Int8 Natural OneBit Qsgd SignSgd",
    "sketch": "Sketch",
    "sparse": "RandomK Sparse Threshold TopK",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
