"""What the Triton kernels of FlashAttention-2 take of a GPU, by tile: compiled for an architecture, and not run."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

SUMS = ("lse_all", "delta_all")
"""Arguments of float32, whatever the states are of."""


class Case(NamedTuple):
    """A kernel with a tile, causal in any case.

    Args:
        capability: of the GPU, 80 or 90.
        kernel: `forward`, `queries` or `keys`.
        dtype: of the states, as Triton names it: `bf16`, `fp32`.
        channels: of a head.
        packed: of a packed row.
        tile: queries, keys, warps and stages.
    """

    capability: int
    kernel: str
    dtype: str
    channels: int
    packed: bool
    tile: tuple[int, int, int, int]


class Usage(NamedTuple):
    """Bytes of shared memory of a block, and of stack of a thread, which is what its registers spill to."""

    shared: int
    stack: int


def compiler_lacks() -> str | None:
    """What there is not of Triton's compiler for NVIDIA GPUs."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        return "Triton is not installed"
    programs = Path(found.origin).parent / "backends/nvidia/bin"
    lacking = [name for name in ("ptxas", "cuobjdump") if not (programs / name).exists()]
    return f"Triton comes without {' and '.join(lacking)}" if lacking else None


def usages(cases: Sequence[Case]) -> Mapping[Case, Usage]:
    """What each takes, in a process without `TRITON_INTERPRET`, which compiles."""
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, TRITON_CACHE_DIR=cache):
        os.environ.pop("TRITON_INTERPRET", None)
        with ProcessPoolExecutor(1, get_context("spawn")) as compiling:
            return dict(zip(cases, compiling.map(compiled, cases), strict=True))


def compiled(case: Case) -> Usage:
    """Compile, in this process."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from dynbench.kernels import flash_triton_kernels as kernels

    function = {"forward": kernels.forward, "queries": kernels.backward_queries, "keys": kernels.backward_keys}
    kernel, channels = function[case.kernel], dict.fromkeys(("D", "CHANNELS"), case.channels)
    queries, keys, warps, stages = case.tile
    constants = {**channels, "CAUSAL": True, "PACKED": case.packed, "UPCAST": False, "QUERIES": queries, "KEYS": keys}
    types = {
        **dict.fromkeys(kernel.arg_names, f"*{case.dtype}"),
        **dict.fromkeys(SUMS, "*fp32"),
        **(dict.fromkeys(("starts", "ends"), "*i32") if case.packed else {}),
        **dict.fromkeys(("n_q", "n_k", "LENGTH"), "i32"),
        "scale": "fp32",
        **dict.fromkeys(constants, "constexpr"),
    }
    signature = {name: types[name] for name in kernel.arg_names}
    aligned = [place for place, kind in enumerate(signature.values()) if kind.startswith("*") or kind == "i32"]
    done = triton.compile(
        ASTSource(kernel, signature, constants, {(place,): [["tt.divisibility", 16]] for place in aligned}),
        target=GPUTarget("cuda", case.capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        listed = subprocess.check_output(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name], stderr=subprocess.DEVNULL, text=True
        )
    [stack] = re.findall(r"STACK:(\d+)", listed)
    return Usage(done.metadata.shared, int(stack))
