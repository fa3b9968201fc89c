"""What the Triton kernels of FlashAttention-2 take of a GPU, by tile: compiled for an architecture, and not run.

As a program, which must be without `TRITON_INTERPRET`, it reads cases and writes what each takes, both as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

SUMS = ("lse_all", "delta_all")
"""Arguments of float32, whatever the states are of."""


@dataclass(frozen=True)
class Case:
    """A kernel with a tile.

    Args:
        capability: of the GPU, 80 or 90.
        kernel: `forward`, `queries` or `keys`.
        dtype: of the states, as Triton names it: `bf16`, `fp32`.
        channels: of a head.
        packed: of a packed row; causal in any case.
        tile: queries, keys, warps and stages.
    """

    capability: int
    kernel: str
    dtype: str
    channels: int
    packed: bool
    tile: tuple[int, int, int, int]


@dataclass(frozen=True)
class Usage:
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


def usages(cases: Sequence[Case]) -> list[Usage]:
    """What each takes, in a process that compiles."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps([asdict(case) for case in cases]),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**environment, "TRITON_CACHE_DIR": cache},
        )
    return [Usage(**each) for each in json.loads(done.stdout)]


def compiled(case: Case) -> Usage:
    """Compile, in this process."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from dynbench.kernels import flash_triton_kernels as kernels

    function = {"forward": kernels.forward, "queries": kernels.backward_queries, "keys": kernels.backward_keys}
    kernel = function[case.kernel]
    queries, keys, warps, stages = case.tile
    constants = {
        "D": case.channels,
        "CHANNELS": case.channels,
        "CAUSAL": True,
        "PACKED": case.packed,
        "UPCAST": False,
        "QUERIES": queries,
        "KEYS": keys,
    }
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
    attributes = {(place,): [["tt.divisibility", 16]] for place in aligned}
    done = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", case.capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        listed = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    [stack] = re.findall(r"STACK:(\d+)", listed)
    return Usage(done.metadata.shared, int(stack))


if __name__ == "__main__":
    given = [Case(**{**case, "tile": tuple(case["tile"])}) for case in json.load(sys.stdin)]
    json.dump([asdict(compiled(case)) for case in given], sys.stdout)
