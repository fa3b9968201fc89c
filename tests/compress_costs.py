"""What compressing costs: `python tests/compress_costs.py [MIB] [THREADS]` prints a line for each form.

Times are those of a copy of the same tensor, in the same process and with destinations that were touched before.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from compressors import FORMS, codec

from dynbench.compress import Known

ROUNDS = 5


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median over rounds, after one that does not count."""
    found = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


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
    for form in sys.argv[3:] or FORMS:
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
        print(f"{form:40} {share:6.3f} {spent[0] / whole:9.2f} {spent[1] / whole:10.2f}")


if __name__ == "__main__":
    main()
