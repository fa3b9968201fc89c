"""A tiny vocabulary, model and hub cache, made on the spot; nothing here reaches the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from architectures import write_config
from torch import nn

from dynbench.config.layers import load_config
from dynbench.config.schema import Config

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["good", "bad", "film", "very", "un", "##like", "##ly", ".", "the", "a"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


DAMAGES: dict[str, Callable[[Path], object]] = {
    "absent": Path.unlink,
    "garbage": lambda file: file.write_bytes(b"x" * 200),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
}


def configured(*settings: str, **options: bool) -> Config:
    """Those without a section are of the workload."""
    given = [each if "." in each.partition("=")[0] else f"workload.{each}" for each in settings]
    return load_config(None, given, **options)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether parameters and statistics are equal."""
    state, others = one.state_dict(), other.state_dict()
    return all(torch.equal(state[name], others[name]) for name in state)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache and an endpoint that nothing listens on."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "tokenised"))


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(SPECIAL + WORDS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as transformers saves it: a headless DistilBERT of 64 positions, and its tokenizer."""
    import tokenizers
    import transformers

    folder = write_config(tmp_path_factory.mktemp("model"), "distilbert", vocab_size=len(SPECIAL + WORDS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = transformers.AutoConfig.from_pretrained(folder)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    backend = tokenizers.Tokenizer.from_str(tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=True).to_str())
    special = {f"{word[1:-1].lower()}_token": word for word in SPECIAL[:4]}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return folder


@pytest.fixture
def cache_on_hub() -> Callable[..., Path]:
    """`cache_on_hub(name, folder, kind="model")` puts a folder's files where a download would have left them."""
    from huggingface_hub import constants

    def put(name: str, folder: Path, kind: str = "model") -> Path:
        root = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"
        snapshot = root / "snapshots" / COMMIT
        shutil.copytree(folder, snapshot)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(COMMIT)
        return snapshot

    return put
