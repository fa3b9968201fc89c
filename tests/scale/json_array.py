"""A large JSON array tokenised, and again with a kill in the middle: how much memory, how fast, and the same shards.

    make scale                                             1,000 MB of generated articles, UTF-8 bytes as tokens
    python tests/scale/json_array.py FOLDER --tokenizer gpt2-vocab.json

`FOLDER/articles.json` is kept for the next time; shards, which take a few times its size, are made anew. Each
tokenising is a `dynbench data lengths` of its own, which makes the workload of `dynbench train`, without its model.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import numpy as np

from dynbench.cli.main import main as dynbench
from dynbench.runs.atomic import replacing
from dynbench.workloads import token_shards
from dynbench.workloads.token_shards import RECORD

SEED = 20261122
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
WORDS = 20_000
ESCAPED = ('"quoted"', "naïve", "第一", "end.\n", "a\\b")
"""Words that JSON writes in another way than they are."""
MEDIAN_LENGTH = 150
"""Words of an article."""


def write_articles(path: Path, size: int) -> None:
    """An array of at least `size` bytes; how often words come, and lengths, are spread as in an encyclopedia."""
    random = np.random.default_rng(SEED)
    made = ["".join(random.choice(SYLLABLES, random.integers(1, 5))) for _ in range(WORDS)]
    words = np.array([*ESCAPED, *made], dtype=object)
    cumulated = np.cumsum(1 / np.arange(10, len(words) + 10))
    with replacing(path) as file:
        number = 0
        while file.tell() < size:
            count = 3 + int(random.lognormal(np.log(MEDIAN_LENGTH), 1))
            chosen = words[np.searchsorted(cumulated, random.random(count) * cumulated[-1])]
            title, text = " ".join(chosen[:2]), " ".join(chosen[2:])
            article = json.dumps({"id": number, "title": title, "text": text}, ensure_ascii=number % 2 == 0)
            file.write(b"[\n" if number == 0 else b",\n")
            file.write(article.encode())
            number += 1
        file.write(b"\n]\n")


def kill_after(shards: int) -> None:
    """This process kills itself once so many shards are listed as finished, with others in work."""
    write, listed = token_shards.write_json, count(1)

    def written(*given: Any) -> None:
        write(*given)
        if next(listed) == shards:
            os.kill(os.getpid(), signal.SIGKILL)

    token_shards.write_json = written  # type: ignore[attr-defined]


def tokenise(given: argparse.Namespace, name: str, shards: int = 0) -> int:
    """Tokenise into `FOLDER/name`, up to a number of shards, and say what it took; how the process ended."""
    settings = {
        "workload.name": "causal_lm",
        "workload.size": "tiny",
        "workload.dataset": "json",
        "workload.data_path": given.folder / "articles.json",
        "workload.tokenizer": given.tokenizer,
        "workload.cache_dir": given.folder / name,
        "workload.max_length": 1024,
        "workload.blocks": "true",
        "train.eval_samples": 0,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words = ["data", "lengths", "-v", "--force", f"--output={given.folder / name}.npy", *sets]
    own = [f"--shard-characters={given.shard_characters}", f"--kill-after={shards}", "--child", *words]
    cache = given.folder / name
    before, began = tokens_in(cache), time.monotonic()
    with Popen([sys.executable, __file__, str(given.folder), *own], stdout=DEVNULL) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds, size = time.monotonic() - began, (given.folder / "articles.json").stat().st_size / 1e6
    tokens = (tokens_in(cache) - before) / 1e6
    print(
        f"{name}: ended with {child.returncode}, {tokens:.1f} M tokens of a file of {size:,.1f} MB in {seconds:.1f} s, "
        f"{tokens / seconds:.2f} M/s; peak memory {used.ru_maxrss / 1000:.0f} MB",
        flush=True,
    )
    return child.returncode


def listed_in(cache: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Every shard that a record says is finished, and what it says of it."""
    for record in cache.glob(f"*/{RECORD}"):
        for number, entry in enumerate(json.loads(record.read_text())["shards"]):
            if entry is not None:
                yield record.with_name(f"{number:05d}.ids.npy"), entry


def tokens_in(cache: Path) -> int:
    """Tokens of the shards that are finished."""
    return sum(entry["tokens"] for _, entry in listed_in(cache))


def finished(cache: Path) -> dict[Path, int]:
    """When each shard that is finished was written, in ns."""
    return {shard: shard.stat().st_mtime_ns for shard, _ in listed_in(cache)}


def files(cache: Path) -> list[Path]:
    """All files of a cache, by their path in it, but those that only lock."""
    return sorted(path.relative_to(cache) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def differing(one: Path, other: Path) -> list[str]:
    """Files that are in one cache only, or not the same bytes in both."""
    ours, theirs = set(files(one)), set(files(other))
    same = {name for name in ours & theirs if filecmp.cmp(one / name, other / name, shallow=False)}
    return sorted(map(str, (ours | theirs) - same))


def main(argv: Sequence[str] | None = None) -> int:
    """Generate, tokenise twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--shard-characters", type=int, default=token_shards.SHARD_CHARACTERS)
    parser.add_argument("--kill-after", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        token_shards.SHARD_CHARACTERS = given.shard_characters
        kill_after(given.kill_after)
        return dynbench(given.child)

    given.folder.mkdir(parents=True, exist_ok=True)
    articles, size = given.folder / "articles.json", round(given.megabytes * 1e6)
    if not articles.exists() or not size <= articles.stat().st_size < size * 1.01 + 1e5:
        write_articles(articles, size)
    whole, killed = given.folder / "whole", given.folder / "killed"
    for cache in (whole, killed):
        shutil.rmtree(cache, ignore_errors=True)

    if tokenise(given, whole.name):
        return 1
    shards = len(finished(whole))
    ended = tokenise(given, killed.name, shards // 2)
    before = finished(killed)
    print(f"killed in the middle: ended with {ended}, {len(before)} of {shards} shards finished", flush=True)
    if ended != -signal.SIGKILL or tokenise(given, killed.name):
        return 1
    written = [str(shard) for shard, when in before.items() if finished(killed)[shard] != when]
    wrong = differing(whole, killed)
    print("\n".join(f"written again: {shard}" for shard in written) or "what was finished was not written again")
    print("\n".join(f"different: {name}" for name in wrong) or f"equal: {len(files(whole))} files")
    return 1 if written or wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
