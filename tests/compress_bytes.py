"""How many times fewer bytes compressors send of the gradients of a 62 M GPT-2 than `none` does, between 2 ranks.

    python tests/compress_bytes.py ARTICLES [VOCAB]

ARTICLES is a JSON array of texts, VOCAB a `vocab.json` with its merges beside it; without them `$DYNBENCH_ARTICLES`
and `$DYNBENCH_VOCAB`. Prints a line for each form, and ends with 1 where one of `WANTED` is missed. Some minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

WANTED = {"int8": 3.9, "fp8": 3.7, "signsgd": 30.0, "topk": 40.0}
"""Least ratio by compressor; topk sends 1 % with error feedback."""
OTHERS = ("fp16", "fp16_torch", "bf16", "qsgd", "natural", "powersgd", "gradiveq", "onebit")
SETTINGS = (
    *("--workload", "causal_lm", "--size", "gpt2-62m", "--dataset", "json", "--max-length", "64"),
    *("--global-batch", "4", "--steps", "2", "--warmup-steps", "1", "--nproc", "2", "--no-figures", "--json"),
    *("--set", "train.eval_samples=0"),
)


def measured(name: str, articles: str, vocab: str | None) -> float:
    """The ratio of a run of its own."""
    tokenizer = [] if vocab is None else ["--tokenizer", vocab]
    command = [sys.executable, "-m", "dynbench", "train", *SETTINGS, *tokenizer]
    command += ["--data-path", articles, "--compress", name]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--results", folder], stdout=subprocess.PIPE, text=True)
    answer = json.loads(done.stdout)
    if done.returncode:
        sys.exit(f"{name}: {answer['error']['message']}")
    ratio: float = answer["summary"]["compression_ratio"]
    return ratio


def missed(names: list[str], articles: str, vocab: str | None) -> Iterator[str]:
    """Names of those that send more than they may; prints all."""
    for name in names:
        ratio = measured(name, articles, vocab)
        print(f"{name:12} {ratio:8.2f}  {'' if name not in WANTED else f'(at least {WANTED[name]})'}", flush=True)
        if ratio < WANTED.get(name, 0.0):
            yield name


def main() -> None:
    given = [*sys.argv[1:3], None, None][:2]
    articles, vocab = (
        value or os.environ.get(key) for value, key in zip(given, ("DYNBENCH_ARTICLES", "DYNBENCH_VOCAB"), strict=True)
    )
    if articles is None:
        sys.exit(str(__doc__))
    names = sys.argv[3:] or [*WANTED, *OTHERS]
    sys.exit(1 if [*missed(names, articles, vocab)] else 0)


if __name__ == "__main__":
    main()
