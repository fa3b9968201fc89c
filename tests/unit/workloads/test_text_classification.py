"""Text classifiers: batches and losses; models of random weights, in any stored shape, or pretrained, or refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from architectures import CONFIGS, TABLE, write_config
from batches import batch_of

from dynbench.config.layers import load_config
from dynbench.config.schema import Config, Workload
from dynbench.errors import DataError, UsageError
from dynbench.workloads.models import ModelSource
from dynbench.workloads.registry import build_workload
from dynbench.workloads.text_classification import SMALL_SHAPE, Trial, model_source

WEIGHTS = "model.safetensors"


def built(**settings):
    return build_workload(Config(workload=Workload(dataset="tsv", **settings)))


@pytest.fixture
def workload(tsv_file, vocab_file):
    return built(data_path=str(tsv_file), tokenizer=str(vocab_file), dropout=0.0)


@pytest.mark.parametrize(("multiple", "width"), [(1, 7), (4, 8), (16, 16)])
def test_collate_pads_to_the_longest_rounded_up(workload, multiple, width):
    ids = np.flatnonzero(workload.train.lengths <= 7)[:5]
    batch = batch_of(workload, ids, multiple)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (5, width)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert batch["attention_mask"].sum(dim=1).tolist() == workload.train.lengths[ids].tolist()
    assert batch["labels"].tolist() == workload.train.labels[ids].tolist()
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


def test_samples_longer_than_the_model_are_cut_with_a_warning(tmp_path, model_folder, caplog):
    path = tmp_path / "long.tsv"
    path.write_text("sentence\tlabel\n" + f"{'film ' * 100}\t1\nbad\t0\n" * 20)
    found = built(data_path=str(path), model=str(model_folder), weights="pretrained")
    assert found.train.lengths.max() == found.eval.lengths.max() == 64
    assert "samples are cut to 64" in caplog.text
    assert found.facts["decisions"]["workload.max_length"]["value"] == 64
    batch = batch_of(found, np.arange(4), 100)
    assert batch["input_ids"].shape[1] == 64, "nothing is padded beyond the model's positions"


def test_loss_is_a_sum_and_sums_add_up(workload):
    model = workload.build_model(0).eval()
    whole = batch_of(workload, np.arange(12))
    with torch.no_grad():
        logits = model(input_ids=whole["input_ids"], attention_mask=whole["attention_mask"]).logits
        expected = F.cross_entropy(logits, whole["labels"], reduction="none").sum().item()
        parts = [workload.eval_sums(model, batch_of(workload, ids)) for ids in (np.arange(5), np.arange(5, 12))]
        assert workload.loss(model, whole).item() == pytest.approx(expected, rel=1e-6)
    assert sum(part["loss_sum"] for part in parts) == pytest.approx(expected, rel=1e-5)
    assert sum(part["correct"] for part in parts) == (logits.argmax(1) == whole["labels"]).sum().item()
    assert workload.loss(workload.build_model(0).bfloat16(), whole).dtype == torch.float32


def random_model(vocab_size: int = 50, num_labels: int = 2, **settings) -> ModelSource:
    return model_source(Workload(**settings), vocab_size, 0, num_labels)


def rates(model):
    return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}


def test_sizes_and_dropout_of_random_weights():
    small = random_model(num_labels=3).config
    assert {key: getattr(small, key) for key in SMALL_SHAPE} == SMALL_SHAPE
    assert (small.vocab_size, small.num_labels) == (50, 3)
    base = random_model(size="base").config
    assert (base.dim, base.n_layers, base.n_heads, base.vocab_size) == (768, 6, 12, 30522)
    assert random_model(40_000, size="base").config.vocab_size == 40_000
    for dropout, expected in ((0.0, {0.0}), (0.3, {0.3}), (None, {0.1, 0.2})):
        assert rates(random_model(dropout=dropout).build(0)) == expected


def configured(folder, *overrides):
    given = [f"workload.model={folder}", "workload.max_length=100", "workload.subset=200", *overrides]
    return build_workload(load_config(None, given))


@pytest.fixture
def of(tmp_path):
    """`of(architecture, *overrides, **changes)` is a workload of its tiny configuration with changes."""
    return lambda architecture, *overrides, **changes: configured(
        write_config(tmp_path / "m", architecture, **changes), *overrides
    )


def same(one, other):
    state, others = one.state_dict(), other.state_dict()
    return all(torch.equal(state[key], others[key]) for key in state)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
def test_dropout_goes_by_each_architectures_own_names(architecture, of, caplog):
    made = of(architecture, "workload.dropout=0.3")
    model, batch = made.build_model(0), batch_of(made, np.arange(8))
    assert {rate for rate in made.facts["model"]["dropout"].values() if rate is not None} == {0.3}
    assert rates(model) <= {0.3} and "two passes differ" not in caplog.text
    torch.manual_seed(0)
    assert not torch.equal(made.loss(model, batch), made.loss(model, batch))


@pytest.mark.parametrize("architecture", CONFIGS)
def test_equal_seeds_give_equal_weights_all_get_gradients_and_padding_changes_nothing(architecture, of, caplog):
    """Without dropout, so that padding is all that could."""
    made = of(architecture, "workload.dropout=0")
    state = torch.random.get_rng_state()
    model, again, other = map(made.build_model, (3, 3, 4))
    assert same(model, again) and not same(model, other)
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.training and rates(model) <= {0} and set(made.facts["model"]["dropout"].values()) <= {0, None}
    assert not any(said in caplog.text for said in ("two passes differ", "padding changes"))
    short, long = (int(pick(made.train.lengths)) for pick in (np.argmin, np.argmax))
    jointly = made.loss(model, batch_of(made, np.array([short, long])))
    assert jointly.equal(made.loss(model, batch_of(made, np.array([short, long]))))
    jointly.backward()
    assert all(part.grad is not None for part in model.parameters() if part.requires_grad)
    apart = [made.loss(model, batch_of(made, np.array([i]))).item() for i in (short, long)]
    assert jointly.item() == pytest.approx(sum(apart), rel=1e-4)


def test_dropout_that_cannot_be_switched_off_is_warned_of(of, caplog):
    noisy = of("bert", "workload.dropout=0").build_model(0)
    noisy.classifier.register_forward_hook(lambda module, _, logits: F.dropout(logits, 0.5, module.training))
    torch.manual_seed(1)
    Trial(20, 300, 0, 2, None, 0.0).passed(noisy, "noisy")
    assert "two passes differ in spite of workload.dropout 0" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "positions"),
    [("bert", TABLE), ("llama", TABLE), ("bart", TABLE), ("roberta", TABLE - 1), ("mpnet", TABLE - 2), ("t5", None)],
)
def test_positions_are_those_that_samples_can_use(architecture, positions, of):
    made = of(architecture, "workload.dataset=lognormal")
    assert made.positions == positions and made.train.lengths.max() == (positions or 100)
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
        configured(tmp_path).build_model(0)
    assert "\n" not in caught.value.message


def test_code_that_a_folder_brings_along_is_never_run(tmp_path, monkeypatch):
    mark = tmp_path / "was-run"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: ...\n")
    auto = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match=r"workload\.model"):
        configured(tmp_path)
    assert not mark.exists()


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


@pytest.mark.parametrize(("tokenizer", "way_out"), [("another", "tokenizer: null"), (None, "knows 16 tokens or more")])
def test_a_smaller_vocabulary_is_refused(model_folder, tokenizer, way_out):
    with pytest.raises(UsageError, match="knows 15 tokens, the data have 16") as caught:
        pretrained(model_folder, vocab_size=16, tokenizer=tokenizer)
    assert way_out in caught.value.hint


def with_a_layer_more(copy):
    config = copy / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_layers": 2}))


def cut_in_half(copy: Path) -> None:
    """Behind the header of the weights."""
    os.truncate(copy / WEIGHTS, (copy / WEIGHTS).stat().st_size // 2)


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda copy: (copy / WEIGHTS).unlink(), DataError, "expected a model saved by"),
        (lambda copy: (copy / WEIGHTS).write_bytes(b"x" * 100), DataError, "expected a model saved by"),
        (
            lambda copy: os.truncate(copy / WEIGHTS, (copy / WEIGHTS).stat().st_size // 2),
            DataError,
            "expected a model saved by",
        ),
        (with_a_layer_more, UsageError, "do not fit its configuration: 16 parameters"),
    ],
    ids=["absent", "garbage", "cut", "another architecture"],
)
def test_a_folder_without_usable_weights_is_named(model_folder, tmp_path, spoil, error, said):
    copy = shutil.copytree(model_folder, tmp_path / "copy")
    spoil(copy)
    with pytest.raises(error, match=said):
        pretrained(copy).build(0)
