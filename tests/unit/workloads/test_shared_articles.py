"""The articles of the shared data through the language model's own way: counts, ids, and a kill in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dynbench.config.schema import Config, Workload
from dynbench.workloads import token_shards
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.registry import build_workload

DATA = Path(__file__).parents[4] / "shared" / "data"
ARTICLES, VOCABULARY = DATA / "gsm8k_articles.json", DATA / "gpt2-vocab.json"

pytestmark = pytest.mark.skipif(not ARTICLES.exists(), reason=f"{ARTICLES} is not there")


def workload(cache: Path, **settings: object):
    asked = {"tokenizer": str(VOCABULARY), "max_length": 128} | settings
    section = Workload(
        name="causal_lm", size="tiny", dataset="json", data_path=str(ARTICLES), cache_dir=str(cache), **asked
    )
    return build_workload(Config().model_copy(update={"workload": section}))


def rows(data: TokenisedData) -> list[list[int]]:
    found, valid = data.padded(np.arange(len(data)), int(data.lengths.max()), -1)
    return [row[keep].tolist() for row, keep in zip(found, valid, strict=True)]


def texts() -> list[str]:
    return [f"{article['title']}\n{article['text']}" for article in json.loads(ARTICLES.read_text(encoding="utf-8"))]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*")}


@pytest.mark.slow
def test_every_article_has_the_ids_that_the_tokenizers_library_gives_it(tmp_path):
    import tokenizers

    made = workload(tmp_path)
    assert (len(made.train), len(made.eval)) == (7473 - 747, 747)
    merges = VOCABULARY.with_name("gpt2-merges.txt")
    library = tokenizers.ByteLevelBPETokenizer(str(VOCABULARY), str(merges))
    end = library.token_to_id("<|endoftext|>")
    expected = [[*encoding.ids, end][:128] for encoding in library.encode_batch(texts())]
    assert sorted(rows(made.train) + rows(made.eval)) == sorted(expected)
    assert made.train.weight(np.arange(len(made.train))) == made.train.lengths.sum() - len(made.train)


@pytest.mark.slow
def test_blocks_are_of_one_length_and_lose_less_than_one_block(tmp_path):
    made = workload(tmp_path, tokenizer="bytes", blocks=True, max_length=256)
    assert {*made.train.lengths, *made.eval.lengths} == {256}
    # bytes, and what begins and ends a text
    whole = sum(len(text.encode()) + 2 for text in texts())
    assert 0 <= whole - 256 * (len(made.train) + len(made.eval)) < 512


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_shared_articles as t
from dynbench.workloads import token_shards, tokenizer
token_shards.SHARD_CHARACTERS, token_shards.CHUNK_CHARACTERS = 2**18, 2**16
encoder = tokenizer.TextTokenizer.encoder

def killed(self, max_length):
    encode, last = encoder(self, max_length), t.texts()[-1]
    def watched(texts):
        if any(text == last for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(texts)
    return watched

tokenizer.TextTokenizer.encoder = killed
t.workload(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_comes_to_the_same_bytes(tmp_path, monkeypatch):
    arguments = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(Path(__file__).parent)]
    assert subprocess.run(arguments).returncode == -9
    left = files(tmp_path / "killed")
    monkeypatch.setattr(token_shards, "SHARD_CHARACTERS", 2**18)
    made = [workload(tmp_path / name) for name in ("killed", "whole")]
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert made[0].train.fingerprint == made[1].train.fingerprint
    shards = [name for name in left if name.endswith(".ids.npy") and "train" in name]
    assert 5 < len(shards) < len([name for name in files(tmp_path / "whole") if "train" in name]) // 3
