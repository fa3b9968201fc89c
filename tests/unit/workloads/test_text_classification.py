from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from batches import batch_of

from dynbench.config.schema import Config, Train, Workload
from dynbench.plugins import WORKLOADS
from dynbench.workloads.registry import build_workload


@pytest.fixture
def workload(tsv_file, vocab_file):
    return build_workload(Config(workload=_settings(tsv_file, vocab_file)))


def _settings(tsv_file, vocab_file, **more) -> Workload:
    return Workload(dataset="tsv", data_path=str(tsv_file), tokenizer=str(vocab_file), dropout=0.0, **more)


@pytest.fixture
def pretrained(tsv_file, model_folder):
    settings = Workload(dataset="tsv", data_path=str(tsv_file), model=str(model_folder), weights="pretrained")
    return build_workload(Config(workload=settings))


@pytest.mark.parametrize(("multiple", "width"), [(1, 7), (4, 8), (16, 16)])
def test_collate_pads_to_the_longest_rounded_up(workload, multiple, width):
    ids = np.flatnonzero(workload.train.lengths <= 7)[:5]
    batch = batch_of(workload, ids, multiple)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (5, width)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert batch["attention_mask"].sum(dim=1).tolist() == workload.train.lengths[ids].tolist()
    assert batch["labels"].tolist() == workload.train.labels[ids].tolist()
    assert not batch["input_ids"][batch["attention_mask"] == 0].any()


def test_collate_never_exceeds_the_models_positions(pretrained):
    assert batch_of(pretrained, np.arange(3), 100)["input_ids"].shape[1] == 64


def test_samples_longer_than_the_model_are_cut_with_a_warning(tmp_path, model_folder, caplog):
    path = tmp_path / "long.tsv"
    path.write_text("sentence\tlabel\n" + f"{'film ' * 100}\t1\nbad\t0\n" * 20)
    settings = Workload(dataset="tsv", data_path=str(path), model=str(model_folder), weights="pretrained")
    workload = build_workload(Config(workload=settings))
    assert workload.train.lengths.max() == workload.eval.lengths.max() == 64
    assert "samples are cut to 64" in caplog.text
    assert workload.facts["decisions"]["workload.max_length"]["value"] == 64
    workload.loss(workload.build_model(0), batch_of(workload, np.arange(4), 8)).backward()


@pytest.mark.parametrize(("table", "longest"), [(64, 64), (2048, 700)])
def test_samples_are_as_long_as_the_model_takes(tmp_path, caplog, table, longest):
    """Beyond 512 tokens where its positions reach so far; and small models have no more than DistilBERT."""
    trace = tmp_path / "lengths.txt"
    trace.write_text("700\n20\n" * 40)
    transformers.DistilBertConfig(
        dim=8, hidden_dim=8, n_layers=1, n_heads=1, max_position_embeddings=table, architectures=["DistilBertModel"]
    ).save_pretrained(tmp_path / "model")
    settings = {"dataset": "lengths", "data_path": str(trace), "max_length": 1000}
    workload = build_workload(Config(workload=Workload(**settings, model=str(tmp_path / "model"))))
    assert workload.train.lengths.max() == longest
    assert f"the model has {table} positions" in caplog.text or table > 1000
    workload.loss(workload.build_model(0), batch_of(workload, np.array([np.argmax(workload.train.lengths)])))
    positions = WORKLOADS["text_classification"].sizes["small"].positions
    assert build_workload(Config(workload=Workload(**settings))).train.lengths.max() == positions


def test_loss_is_a_sum_and_sums_add_up(workload):
    model = workload.build_model(0).eval()
    whole = batch_of(workload, np.arange(12))
    with torch.no_grad():
        logits = model(input_ids=whole["input_ids"], attention_mask=whole["attention_mask"]).logits
        expected = F.cross_entropy(logits, whole["labels"], reduction="none")
        parts = [workload.eval_sums(model, batch_of(workload, ids)) for ids in (np.arange(5), np.arange(5, 12))]
        assert workload.loss(model, whole).item() == pytest.approx(expected.sum().item(), rel=1e-6)
    assert sum(part["loss_sum"] for part in parts) == pytest.approx(expected.sum().item(), rel=1e-5)
    assert sum(part["correct"] for part in parts) == (logits.argmax(1) == whole["labels"]).sum().item()


def test_padding_does_not_change_the_loss_and_hiding_the_mask_would(workload):
    model = workload.build_model(0).double().eval()
    tight, wide = (batch_of(workload, np.arange(8), multiple) for multiple in (1, 32))
    with torch.no_grad():
        loss = workload.loss(model, tight)
        assert loss.dtype == torch.float64
        assert workload.loss(model, wide).item() == pytest.approx(loss.item(), rel=1e-12)
        wide["attention_mask"] = torch.ones_like(wide["attention_mask"])
        assert workload.loss(model, wide).item() != pytest.approx(loss.item(), rel=1e-6)


def test_half_precision_logits_are_raised_for_the_loss(workload):
    model = workload.build_model(0).bfloat16()
    assert workload.loss(model, batch_of(workload, np.arange(4))).dtype == torch.float32


def test_facts_are_json_and_tell_where_things_come_from(workload, tsv_file, vocab_file):
    facts = json.loads(json.dumps(workload.facts))
    assert facts["train_source"] == str(tsv_file)
    assert facts["tokenizer"]["source"] == str(vocab_file)
    assert facts["train"]["samples"] == 36
    assert facts["fingerprint"] == workload.train.fingerprint
    assert facts["model"]["dropout"] == {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}


def test_the_same_configuration_gives_the_same_workload(tsv_file, vocab_file):
    config = Config(workload=_settings(tsv_file, vocab_file, subset=20), train=Train(seed=5))
    first, second = build_workload(config), build_workload(config)
    assert first.facts == second.facts


@pytest.mark.slow
def test_a_small_model_learns_the_embedded_labels():
    workload = build_workload(Config(workload=Workload(dropout=0.0)))
    held_out = batch_of(workload, np.arange(256), data=workload.eval)
    model = workload.build_model(0)
    with torch.no_grad():
        before = workload.eval_sums(model, held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = np.random.default_rng(0).permutation(len(workload.train))
    for step in range(40):
        workload.loss(model, batch_of(workload, order[step * 24 : (step + 1) * 24])).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        after = workload.eval_sums(model, held_out)
    assert after["loss_sum"] < 0.7 * before["loss_sum"]
    assert after["correct"] / 256 > 0.8
