"""Packed rows in training: the gradients of padded batches, by the known architectures, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from architectures import write_config
from batches import batch_of
from packed import WINDOW
from probes import resolved

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.rank.saved import Saved
from dynbench.errors import ConfigError, UsageError
from dynbench.kernels import Boundaries
from dynbench.plugins.policies import ROWS
from dynbench.workloads.batches import check_rows, make_micro_batch, samples_to_check
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.inputs import check_inputs
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
SLIDING = {"local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2}
CHANGES: dict[str, dict[str, object]] = {"modernbert": {**SLIDING, "classifier_pooling": "mean"}}
CAUSAL = ("gpt2", "llama")


def configured(folder: Path, architecture: str, layout: str, *more: str) -> Config:
    name = "causal_lm" if architecture in CAUSAL else "text_classification"
    model = write_config(folder / architecture, architecture, **CHANGES.get(architecture, {}))
    workload = (f"model={model}", f"name={name}", "size=model", f"layout={layout}", "dropout=0", "max_length=40")
    return resolved(*(f"workload.{each}" for each in (*workload, "subset=100")), *more).config


@pytest.mark.parametrize(
    ("architecture", "layout"),
    [
        *((name, "packed") for name in ("distilbert", "bert", "roberta", "modernbert", *CAUSAL)),
        *((name, "flattened") for name in CAUSAL),
    ],
)
def test_rows_give_the_loss_the_gradients_and_the_evaluation_of_padded_batches(architecture, layout, tmp_path):
    found, ids = [], np.array([7, 3, 50, 21, 3])
    for each in ("padded", layout):
        workload = build_workload(configured(tmp_path, architecture, each))
        model = workload.build_model(0).double()
        batch, lengths = make_micro_batch(workload, workload.train, ids, 1), workload.train.lengths[ids]
        assert (batch.n, batch.width) == (len(ids), lengths.max())
        assert batch.tokens == (lengths.sum() if each == layout else len(ids) * lengths.max())
        loss = workload.loss(model, batch.inputs)
        loss.backward()
        with torch.no_grad():
            sums = workload.eval_sums(model.eval(), batch_of(workload, np.arange(8), data=workload.eval))
        found.append([loss.item(), *sums.values(), *(part.grad for part in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("architecture", "more", "leaks"),
    [("distilbert", (), True), ("gpt2", (), False), ("gpt2", ("workload.use_cache=true",), True)],
)
def test_what_is_seen_of_flattened_rows_is_kept_and_nothing_refused(architecture, more, leaks, tmp_path, caplog):
    workload = build_workload(configured(tmp_path, architecture, "flattened", *more))
    with caplog.at_level("WARNING", "dynbench"):
        found = check_rows(workload, 0, CPU, None)
    assert max(found["lengths"]) == workload.train.lengths.max()
    assert (found["leak"] is not None, found["foreign_gradient"] > 0) == (leaks, leaks)
    assert sum("it trains all the same" in record.getMessage() for record in caplog.records) == leaks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("use_cache=true name=causal_lm size=tiny layout=padded", "layout to flattened"),
        ("use_cache=true name=causal_lm size=tiny layout=packed", "layout to flattened"),
        ("use_cache=true layout=flattened", "of causal_lm"),
        ("layout=packed name=mine.py:Mine", r"are not made by mine\.py:Mine.*text_classification, causal_lm"),
    ],
)
def test_settings_that_no_row_is_made_with(settings, message):
    key = settings.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"workload\.{key}: .*{message}"):
        load_config(None, [f"workload.{each}" for each in settings.split()])


@pytest.mark.parametrize(
    ("lengths", "expected"), [([5], [0, 0]), ([9, 2, 4], [1, 2, 0]), (range(1, 101), [0, 20, 40, 59, 79, 99])]
)
def test_which_samples_the_proof_is_on(lengths, expected):
    data = TokenisedData.from_samples([[1] * length for length in lengths], np.zeros(len(lengths), np.int64))
    assert samples_to_check(data).tolist() == expected


@pytest.mark.parametrize(
    ("name", "architecture", "known"),
    [
        ("text_classification", "albert", "distilbert, bert, roberta, modernbert, not for albert"),
        ("text_classification", "gpt2", "not for gpt2"),
        ("causal_lm", "opt", "gpt2, llama, not for opt"),
        ("causal_lm", "bert", "not for bert"),
    ],
)
def test_other_architectures_are_refused_before_anything_is_launched(name, architecture, known, tmp_path):
    model = write_config(tmp_path / "m", architecture)
    settings = [f"workload.name={name}", f"workload.model={model}", "workload.size=model"]
    for layout in ROWS:
        with pytest.raises(UsageError, match=rf"workload\.layout: {layout}, and workload\.model .*" + known):
            check_inputs(load_config(None, [*settings, f"workload.layout={layout}"]))
    check_inputs(load_config(None, settings))


def test_a_model_trained_on_packed_rows_is_saved_as_any_other(tmp_path):
    workload = build_workload(configured(tmp_path, "bert", "packed"))
    model = workload.build_model(0).eval()
    workload.save(tmp_path / "saved", model.state_dict())
    read = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    tokens = torch.from_numpy(workload.train.joined(np.array([0])))[None]
    alone = Boundaries((tokens.shape[1],))
    torch.testing.assert_close(read(input_ids=tokens).logits, model(input_ids=tokens, boundaries=alone).logits)
    assert Saved(tmp_path / "saved").config(("workload.layout=packed",)).workload.layout == "padded"
