from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
import transformers

from dynbench.config.schema import Workload
from dynbench.errors import DataError, HubError, UsageError
from dynbench.workloads.pretrained_model import ModelSource, pretrained_model


def find(name: object, num_labels: int = 2, vocab_size: int = 15, **settings) -> ModelSource:
    return pretrained_model(Workload(model=str(name), weights="pretrained", **settings), vocab_size, 0, num_labels)


@pytest.fixture
def copy(model_folder, tmp_path):
    return shutil.copytree(model_folder, tmp_path / "copy")


def test_the_body_is_the_stored_one_and_the_head_follows_the_seed(model_folder, caplog):
    caplog.set_level(logging.INFO)
    stored = transformers.DistilBertModel.from_pretrained(model_folder)
    first, again, other = (find(model_folder).build(seed) for seed in (1, 1, 2))
    for name, parameter in stored.named_parameters():
        assert torch.equal(first.distilbert.get_parameter(name), parameter)
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    assert "starts from random weights" in caplog.text
    assert first.training


def test_hub_cache_and_folder_give_the_same_model(model_folder, cache_on_hub):
    cache_on_hub("someone/tiny", model_folder)
    cached, local = find("someone/tiny").build(1), find(model_folder).build(1)
    for mine, theirs in zip(cached.parameters(), local.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert find("someone/tiny").facts["revision"] == "0123456789abcdef0123456789abcdef01234567"


def test_a_stored_head_is_kept_where_it_fits_and_replaced_where_not(model_folder, tmp_path):
    tuned = find(model_folder, num_labels=3).build(5)
    tuned.save_pretrained(tmp_path / "tuned")
    assert torch.equal(find(tmp_path / "tuned", num_labels=3).build(6).classifier.weight, tuned.classifier.weight)
    assert find(tmp_path / "tuned", num_labels=2).build(6).classifier.weight.shape == (2, 16)


def test_half_precision_weights_become_fp32(model_folder, tmp_path):
    transformers.DistilBertModel.from_pretrained(model_folder).half().save_pretrained(tmp_path / "half")
    assert {parameter.dtype for parameter in find(tmp_path / "half").build(0).parameters()} == {torch.float32}


def test_dropout_is_overridden(model_folder):
    model = find(model_folder, dropout=0.0).build(0)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


def test_positions_are_the_models(model_folder):
    assert find(model_folder).positions == 64


@pytest.mark.parametrize(("tokenizer", "way_out"), [("another", "tokenizer: null"), (None, "knows 16 tokens or more")])
def test_a_smaller_vocabulary_is_refused(model_folder, tokenizer, way_out):
    with pytest.raises(UsageError, match="knows 15 tokens, the data have 16") as caught:
        find(model_folder, vocab_size=16, tokenizer=tokenizer)
    assert way_out in caught.value.hint


def test_weights_of_another_architecture_are_refused(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "n_layers": 2}))
    with pytest.raises(UsageError, match=r"do not fit its configuration: 16 parameters"):
        find(copy).build(0)


@pytest.mark.parametrize("damage", ["absent", "garbage", "cut"])
def test_a_folder_without_usable_weights_is_named(copy, damage):
    weights = copy / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if damage != "absent":
        weights.write_bytes(b"x" * 100 if damage == "garbage" else content[: len(content) // 2])
    with pytest.raises(DataError, match="expected a model saved by transformers"):
        find(copy).build(0)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="expected a model saved by transformers"):
        find(tmp_path)


def test_other_kinds_of_models_are_refused(tmp_path):
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="is no text encoder"):
        find(tmp_path)


def test_an_unreachable_hub_offers_local_and_random_weights():
    with pytest.raises(HubError) as caught:
        find("distilbert-base-uncased")
    assert "--weights random" in caught.value.hint
    assert "FOLDER" in caught.value.hint


def test_cached_configuration_without_weights_is_incomplete(copy, cache_on_hub):
    (copy / "model.safetensors").unlink()
    cache_on_hub("someone/tiny", copy)
    with pytest.raises(HubError, match="incomplete in the hub's cache"):
        find("someone/tiny").build(0)
