"""Text classifiers: batches and losses; models of random weights, in any stored shape, or pretrained, or refused."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from architectures import TABLE, write_config
from batches import batch_of

from dynbench.config.layers import load_config
from dynbench.config.schema import Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads.models import ModelSource
from dynbench.workloads.registry import build_workload
from dynbench.workloads.text_classification import SMALL_SHAPE, Trial, model_source


def built(*settings: str):
    return build_workload(load_config(None, [f"workload.{each}" for each in settings]))


@pytest.fixture
def of(tmp_path):
    """`of(architecture, *settings, **changes)` is a workload of its tiny configuration with changes."""
    return lambda architecture, *settings, **changes: built(
        f"model={write_config(tmp_path / 'm', architecture, **changes)}", "max_length=100", "subset=200", *settings
    )


@pytest.fixture(scope="module")
def workload():
    return built("size=small", "dropout=0", "subset=200")


@pytest.mark.parametrize(("multiple", "width"), [(1, 7), (4, 8), (16, 16)])
def test_collate_pads_to_the_longest_rounded_up(workload, multiple, width):
    ids = np.array([i for length in (3, 7) for i in np.flatnonzero(workload.train.lengths == length)[:2]])
    batch = batch_of(workload, ids, multiple)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (4, width)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert batch["attention_mask"].sum(dim=1).tolist() == workload.train.lengths[ids].tolist()
    assert batch["labels"].tolist() == workload.train.labels[ids].tolist()
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


def test_losses_and_right_answers_are_those_of_the_logits(workload):
    model, batch = workload.build_model(0).eval(), batch_of(workload, np.arange(12))
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = pytest.approx(F.cross_entropy(logits, batch["labels"], reduction="sum").item(), rel=1e-6)
        assert workload.loss(model, batch).item() == loss
        right = (logits.argmax(1) == batch["labels"]).sum().item()
        assert workload.eval_sums(model, batch) == {"loss_sum": loss, "correct": right}
    assert workload.loss(model.bfloat16(), batch).dtype == torch.float32


def random_model(vocab_size: int = 50, num_labels: int = 2, **settings) -> ModelSource:
    return model_source(Workload(**settings), vocab_size, 0, num_labels)


def test_sizes_and_dropout_of_random_weights():
    small = random_model(num_labels=3).config
    assert {key: getattr(small, key) for key in SMALL_SHAPE} == SMALL_SHAPE
    assert (small.vocab_size, small.num_labels) == (50, 3)
    base = random_model(size="base").config
    assert (base.dim, base.n_layers, base.n_heads, base.vocab_size) == (768, 6, 12, 30522)
    assert random_model(40_000, size="base").config.vocab_size == 40_000
    model = random_model().build(0)
    assert {each.p for each in model.modules() if isinstance(each, torch.nn.Dropout)} == {0.1, 0.2}


def test_dropout_that_cannot_be_switched_off_is_warned_of(of, caplog):
    noisy = of("bert", "dropout=0").build_model(0)
    noisy.classifier.register_forward_hook(lambda module, _, logits: F.dropout(logits, 0.5, module.training))
    torch.manual_seed(1)
    Trial(20, 300, 0, 2, None, 0.0).passed(noisy, "noisy")
    assert "two passes differ in spite of workload.dropout 0" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "positions"),
    [("bert", TABLE), ("llama", TABLE), ("bart", TABLE), ("roberta", TABLE - 1), ("mpnet", TABLE - 2), ("t5", None)],
)
def test_positions_are_those_that_samples_can_use_and_longer_ones_are_cut(architecture, positions, of, caplog):
    """Nothing is padded beyond them."""
    made = of(architecture, "dataset=lognormal")
    assert made.positions == positions
    assert made.train.lengths.max() == made.eval.lengths.max() == (positions or 100)
    assert positions is None or f"samples are cut to {positions}" in caplog.text
    assert made.facts["decisions"].get("workload.max_length", {}).get("value") == positions
    made.loss(made.build_model(0), batch_of(made, np.array([np.argmax(made.train.lengths)]), 64))


def test_the_vocabulary_grows_to_the_datas_and_keeps_what_it_has_beyond(of):
    assert of("bert").facts["model"]["vocab_size"] == 4096
    assert of("bert", vocab_size=5000).build_model(0).get_input_embeddings().num_embeddings == 5000


def test_parameters_that_classify_nothing_are_frozen(of, caplog):
    caplog.set_level(logging.INFO)
    model = of("xlnet", vocab_size=300, d_model=16, n_layer=1, n_head=2, d_inner=32).build_model(0)
    frozen = {key for key, part in model.named_parameters() if not part.requires_grad}
    assert "transformer.mask_emb" in frozen and "parameters get no gradient" in caplog.text
    assert "padding changes what a sample gives" in caplog.text


def test_whole_layers_are_never_left_out(of, caplog):
    made = of("opt", layerdrop=0.5)
    assert "skips whole layers" in caplog.text and made.build_model(0).config.layerdrop == 0


def test_experts_that_the_data_choose_are_refused(of):
    model = of("bert").build_model(0)
    model.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))
    with pytest.raises(UsageError, match="mixture of experts"):
        Trial(20, 50, 0, 2, None, None).passed(model, "mine")


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        ({"model_type": "vit"}, UsageError, r"\(vit\) makes no text classifier: .*Unrecognized configuration class"),
        ({"model_type": "bert", "hidden_size": 15}, UsageError, r"\(bert\) makes no text classifier: .*multiple"),
        ({"model_type": "no-such"}, DataError, "no-such"),
        ("{torn", DataError, "expected a model saved by transformers"),
        ({"model_type": "xmod", "num_hidden_layers": 1, "hidden_size": 12, "vocab_size": 300}, UsageError,
         r"\(xmod\) cannot classify samples of 4 to 100 token ids: ValueError: Input language unknown"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_by_name_with_the_reason(content, error, said, tmp_path):
    (tmp_path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(error, match=rf"^workload\.model: {tmp_path}.*{said}") as caught:
        built(f"model={tmp_path}", "max_length=100").build_model(0)
    assert "\n" not in caught.value.message


def test_of_a_folder_whose_shape_is_taken_the_digest_is_recorded(tmp_path):
    folder = write_config(tmp_path / "m", "bert")
    first = random_model(300, model=str(folder)).facts
    write_config(folder, "bert", hidden_act="relu")
    assert first["digest"] != random_model(300, model=str(folder)).facts["digest"]
    assert "digest" not in random_model(300, model=str(folder), size="small").facts


def pretrained(name: object, num_labels: int = 2, vocab_size: int = 15, **more) -> ModelSource:
    return random_model(vocab_size, num_labels, model=str(name), weights="pretrained", **more)


def test_the_body_is_the_stored_one_and_the_head_follows_the_seed(model_folder, caplog):
    caplog.set_level(logging.INFO)
    stored = transformers.DistilBertModel.from_pretrained(model_folder)
    first, again, other = (pretrained(model_folder).build(seed) for seed in (1, 1, 2))
    for name, parameter in stored.named_parameters():
        assert torch.equal(first.distilbert.get_parameter(name), parameter)
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    assert "starts from random weights" in caplog.text and first.training


def test_a_stored_head_stays_where_it_fits_and_half_precision_becomes_fp32(model_folder, tmp_path):
    tuned = pretrained(model_folder, num_labels=3).build(5)
    tuned.half().save_pretrained(tmp_path / "tuned")
    again = pretrained(tmp_path / "tuned", num_labels=3).build(6)
    assert torch.equal(again.classifier.weight, tuned.classifier.weight.float())
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
    assert pretrained(tmp_path / "tuned", num_labels=2).build(6).classifier.weight.shape == (2, 16)


def test_a_smaller_vocabulary_is_refused(model_folder):
    with pytest.raises(UsageError, match="knows 15 tokens, the data have 16"):
        pretrained(model_folder, vocab_size=16)
