"""A large JSON array tokenised, and again with a kill in the middle: how much memory, how fast, and the same shards.

    make scale                                             1,000 MB of generated articles, UTF-8 bytes as tokens
    python tests/scale/json_array.py FOLDER --tokenizer gpt2-vocab.json

`FOLDER/articles.json` is kept for the next time; shards, which take a few times its size, are made anew. Each
tokenising is a process of its own that makes the workload of `dynbench train`, without its model.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import logging
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np

from dynbench.config.layers import load_config
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


@dataclass(frozen=True)
class Tokenised:
    """What a process says of the workload that it made.

    Args:
        tokens: of all samples, those held out among them.
        seconds: for reading and tokenising.
        peak_kb: its peak memory with that of its largest child.
    """

    tokens: int
    seconds: float
    peak_kb: int


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


def tokenise(given: argparse.Namespace) -> Tokenised:
    """The workload, its shards in the folder `--into`; the process kills itself at character `--kill-at`."""
    from dynbench.workloads.causal_lm import CausalLanguageModel

    token_shards.SHARD_CHARACTERS = given.shard_characters
    if given.kill_at is not None:
        _kill_at(given.kill_at)
    settings = {
        "name": "causal_lm",
        "size": "tiny",
        "dataset": "json",
        "data_path": given.folder / "articles.json",
        "tokenizer": given.tokenizer,
        "cache_dir": given.into,
        "max_length": 1024,
        "blocks": "true",
    }
    asked = [f"workload.{key}={value}" for key, value in settings.items()]
    config = load_config(None, [*asked, "train.eval_samples=0"])
    began = time.monotonic()
    workload = CausalLanguageModel(config)
    seconds = time.monotonic() - began
    tokens = sum(int(data.lengths.sum()) for data in (workload.train, workload.eval) if data is not None)
    return Tokenised(tokens, seconds, peak_kb())


def _kill_at(characters: int) -> None:
    from dynbench.workloads.tokenizer import TextTokenizer

    encoder, given = TextTokenizer.encoder, 0

    def killed(self: TextTokenizer, max_length: int | None) -> Callable[[Sequence[str]], object]:
        encode = encoder(self, max_length)

        def watched(texts: Sequence[str]) -> object:
            nonlocal given
            given += sum(map(len, texts))
            if given > characters:
                os.kill(os.getpid(), signal.SIGKILL)
            return encode(texts)

        return watched

    TextTokenizer.encoder = killed  # type: ignore[method-assign, assignment]


def peak_kb() -> int:
    """Peak resident memory of this process and of its largest child."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def tokenise_apart(given: argparse.Namespace, name: str, *more: str) -> Tokenised | int:
    """A process that tokenises into `FOLDER/name`: what it says, or how it ended."""
    words = [str(given.folder), "--tokenizer", given.tokenizer, "--shard-characters", str(given.shard_characters)]
    argv = [sys.executable, __file__, *words, "--into", str(given.folder / name), *more]
    with Popen(argv, stdout=PIPE, text=True) as child:
        said, _ = child.communicate()
    return child.returncode or Tokenised(**json.loads(said.splitlines()[-1]))


def finished(cache: Path) -> dict[Path, int]:
    """When each shard was written, in ns, of those that a record lists."""
    listed = {}
    for record in cache.glob(f"*/{RECORD}"):
        for number, entry in enumerate(json.loads(record.read_text())["shards"]):
            if entry is not None:
                shard = record.with_name(f"{number:05d}.ids.npy")
                listed[shard] = shard.stat().st_mtime_ns
    return listed


def files(cache: Path) -> list[Path]:
    """All files of a cache, by their path in it, but those that only lock."""
    return sorted(path.relative_to(cache) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def differing(one: Path, other: Path) -> list[str]:
    """Files that are in one cache only, or not the same bytes in both."""
    ours, theirs = set(files(one)), set(files(other))
    same = {name for name in ours & theirs if filecmp.cmp(one / name, other / name, shallow=False)}
    return sorted(map(str, (ours | theirs) - same))


def show(what: str, found: Tokenised, size: int) -> None:
    """A line of what a tokenising took."""
    rate = found.tokens / found.seconds / 1e6
    print(
        f"{what}: {found.tokens:,} tokens in {found.seconds:.1f} s, {rate:.2f} M tokens/s, "
        f"{size / found.seconds / 1e6:.2f} MB/s of the file; peak memory {found.peak_kb / 1000:.0f} MB",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Generate, tokenise twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--shard-characters", type=int, default=token_shards.SHARD_CHARACTERS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.into is not None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        print(json.dumps(asdict(tokenise(given))))
        return 0

    given.folder.mkdir(parents=True, exist_ok=True)
    articles, size = given.folder / "articles.json", round(given.megabytes * 1e6)
    if not articles.exists() or not size <= articles.stat().st_size < size * 1.01 + 1e5:
        write_articles(articles, size)
    size = articles.stat().st_size
    print(f"{articles}: {size / 1e6:,.1f} MB", flush=True)
    whole, killed = given.folder / "whole", given.folder / "killed"
    for cache in (whole, killed):
        shutil.rmtree(cache, ignore_errors=True)

    first = tokenise_apart(given, whole.name)
    if not isinstance(first, Tokenised):
        print(f"tokenising ended with {first}")
        return 1
    show("cold", first, size)
    contents = [json.loads(path.read_text())["contents"] for path in whole.glob("*.contents.json")]
    middle = sum(found["characters"] for found in contents) // 2
    ended = tokenise_apart(given, killed.name, "--kill-at", str(middle))
    before = finished(killed)
    shards = f"{len(before)} of {len(finished(whole))} shards finished"
    print(f"killed in the middle: ended with {ended}, {shards}", flush=True)
    again = tokenise_apart(given, killed.name)
    if ended != -signal.SIGKILL or not isinstance(again, Tokenised):
        print(f"going on ended with {again}")
        return 1
    show("gone on with", again, size)
    written = [str(shard) for shard, when in before.items() if finished(killed)[shard] != when]
    wrong = differing(whole, killed)
    print("\n".join(f"written again: {shard}" for shard in written) or "what was finished was not written again")
    print("\n".join(f"different: {name}" for name in wrong) or f"equal: {len(files(whole))} files")
    return 1 if written or wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
