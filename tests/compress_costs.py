"""What compressing costs: `python tests/compress_costs.py [MIB] [THREADS]` prints a line for each form.

Times are those of a copy of the same tensor, in the same process and with destinations that were touched before. Of
forms with collectives of their own they are what these say of the second of two steps, error feedback included.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from compressors import FORMS, OWN, codec, compressor, on_threads

from dynbench.compress import Known
from dynbench.wire.segment import lay_out

ROUNDS = 5
WHOLE = ("gradiveq", "powersgd", *(form for form in OWN if form.startswith("sketch")))
"""Forms with collectives of their own."""


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median over rounds, after one that does not count."""
    found = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def of_a_step(form: str, values: torch.Tensor) -> tuple[float, float, float]:
    """Bytes as a share, and seconds to compress and to decompress, of a square matrix of so many elements."""
    side = int(len(values) ** 0.5)
    segments = lay_out([("weight", (side, side))])

    def work(channel: Any) -> tuple[float, float, float]:
        made = compressor(form)
        for _ in range(2):
            flat = values[: side * side].clone()
            channel.calls.clear()
            made.mean(channel, flat, segments)
            row = made.row()
        sent = sum(size for _, size in channel.calls)
        return sent / flat.nbytes, row["compress_ms"] / 1e3, row["decompress_ms"] / 1e3

    found: tuple[float, float, float] = on_threads(1, work)[0]
    return found


def line(form: str, share: float, compress_s: float, decompress_s: float, copy_s: float) -> str:
    """What is printed of a form."""
    return f"{form:40} {share:6.3f} {compress_s / copy_s:9.2f} {decompress_s / copy_s:10.2f}"


def main() -> None:
    mib, threads = (
        [int(text) for text in [*sys.argv[1:3], "64", "2"][:2]] if len(sys.argv) != 2 else [int(sys.argv[1]), 2]
    )
    torch.set_num_threads(threads)
    values = torch.randn(mib * 2**20 // 4)
    out, copy = torch.empty_like(values), torch.empty_like(values)
    whole = seconds(lambda: copy.copy_(values), 9)
    print(f"{mib} MiB, {threads} threads: a copy takes {whole * 1e3:.1f} ms")
    print(f"{'form':40} {'bytes':>6} {'compress':>9} {'decompress':>10}   (copies)")
    for form in sys.argv[3:] or (*FORMS, *WHOLE):
        if form in WHOLE:
            print(line(form, *of_a_step(form, values), whole))
            continue
        made, known = codec(form), Known(ranks=2)
        if made.measures:
            known = replace(known, number=made.measure(values).double())
        payload = [torch.zeros(field.length, dtype=field.dtype) for field in made.fields(len(values), known)]

        def compress(made=made, known=known, payload=payload) -> None:
            if made.measures:
                made.measure(values)
            made.encode(values, known, payload)

        rounds = ROUNDS if whole * 30 < 10 else 1
        spent = seconds(compress, rounds), seconds(lambda m=made, k=known, p=payload: m.decode(p, k, out), rounds)
        share = sum(each.nbytes for each in payload) / values.nbytes
        print(line(form, share, *spent, whole), flush=True)


if __name__ == "__main__":
    main()
