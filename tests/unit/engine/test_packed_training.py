"""Packed rows in training: the steps of padded batches, by the architectures that are known, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from architectures import write_config
from batches import batch_of, row_of
from packed import WINDOW
from probes import resolved
from toys import InDouble

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.planning import build_problem
from dynbench.engine.rank.replica import Replica
from dynbench.engine.rank.row_builder import RowBuilder
from dynbench.engine.rank.saved import Saved
from dynbench.engine.rank.timers import StepTimer
from dynbench.errors import ConfigError, UsageError
from dynbench.kernels import Boundaries
from dynbench.plugins.policies import ROWS
from dynbench.schedule.policy import Planner
from dynbench.workloads.base import Saves
from dynbench.workloads.batches import check_rows, make_micro_batch, samples_to_check
from dynbench.workloads.data import TokenisedData
from dynbench.workloads.inputs import check_inputs
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
STEPS, RANKS, BATCH = 3, 2, 12
SLIDING = {"local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2}
CHANGES: dict[str, dict[str, object]] = {"modernbert": {**SLIDING, "classifier_pooling": "mean"}}
CAUSAL = ("gpt2", "llama")
PLANS = {
    "static": ("padded", "static", 1),
    "static packed": ("packed", "static", 1),
    "packed": ("packed", "partition", 1),
    "two rows": ("packed", "partition", 2),
}
FLATTENED = {"flattened": ("flattened", "partition", 1), "static flattened": ("flattened", "static", 1)}
"""Of models whose own attention keeps samples of a row apart."""


def configured(
    folder: Path, architecture: str, layout: str, policy: str = "partition", rows: int = 1, more: tuple[str, ...] = ()
) -> Config:
    name = "causal_lm" if architecture in CAUSAL else "text_classification"
    model = write_config(folder / architecture, architecture, **CHANGES.get(architecture, {}))
    workload = (f"model={model}", f"name={name}", "size=model", f"layout={layout}", "dropout=0", "max_length=40")
    schedule = (f"schedule.policy={policy}", f"schedule.micro_batches={rows}")
    sizes = ("workload.subset=100", f"train.global_batch={BATCH}", f"launch.nproc={RANKS}")
    return resolved(*(f"workload.{each}" for each in workload), *schedule, *sizes, *more).config


@pytest.mark.parametrize(
    "architecture",
    ["distilbert", "bert", "roberta", "modernbert", "gpt2", pytest.param("llama", marks=pytest.mark.matrix)],
)
def test_packed_steps_are_those_of_padded_batches(architecture, tmp_path):
    """In float64, over a few steps of two ranks' work, by every layout, policy and number of rows."""
    trained = {}
    plans = PLANS | (FLATTENED if architecture in CAUSAL else {})
    for name, plan in plans.items():
        config = configured(tmp_path, architecture, *plan)
        workload = build_workload(config)
        problem = build_problem(config, workload.train.lengths, RANKS, 1, positions=workload.positions)
        replica = Replica(config, workload, CPU, StepTimer(CPU), InDouble())
        planner = Planner(config.schedule.policy_name, problem)
        for step in range(STEPS):
            shares = planner.plan(step).shares
            assert {len(share) for share in shares} == {plan[2]}
            weight = sum(replica.weight(share) for share in shares)
            for share in shares:
                replica.compute(replica.load(share), lambda weight=weight: 1 / weight)
            replica.update()
        trained[name] = torch.cat([part.detach().flatten() for part in replica.model.parameters()])
    start = torch.cat([part.detach().double().flatten() for part in workload.build_model(0).parameters()])
    moved = float((trained["static"] - start).norm())
    assert moved > 0
    for name in plans:
        assert float((trained[name] - trained["static"]).norm()) < 1e-7 * moved, name


@pytest.mark.parametrize("layout", ROWS)
@pytest.mark.parametrize("architecture", ["distilbert", "gpt2"])
def test_a_row_holds_real_tokens_only_and_its_labels_follow_its_order(architecture, layout, tmp_path):
    config = configured(tmp_path, architecture, layout)
    workload = build_workload(config)
    ids = np.array([7, 3, 50, 21, 3])
    batch = make_micro_batch(workload, workload.train, ids, 8)
    lengths = workload.train.lengths[ids]
    lengths = np.sort(lengths) if layout == "packed" else lengths
    inputs, boundaries = batch.inputs, batch.inputs["boundaries"]
    assert (batch.n, batch.width, batch.tokens) == (5, lengths.max(), lengths.sum())
    assert inputs["input_ids"].shape == (1, batch.tokens) and boundaries == Boundaries(tuple(lengths.tolist()))
    of_each = [sample.tolist() for sample in inputs["input_ids"][0].split(list(boundaries.lengths))]
    data = workload.train
    expected = [data.tokens[data.offsets[i] : data.offsets[i + 1]].tolist() for i in ids]
    assert sorted(of_each) == sorted(expected)
    if architecture == "gpt2":
        targets = inputs["labels"][0].split(list(boundaries.lengths))
        assert [each.tolist() for each in targets] == [[*tokens[1:], -100] for tokens in of_each]
    else:
        known = {tuple(tokens): int(data.labels[i]) for tokens, i in zip(expected, ids, strict=True)}
        assert inputs["labels"].tolist() == [known[tuple(tokens)] for tokens in of_each]


def test_rows_record_the_layout_and_no_padding(tmp_path):
    config = configured(tmp_path, "distilbert", "packed", rows=2)
    workload = build_workload(config)
    replica = Replica(config, workload, CPU, StepTimer(CPU), InDouble())
    share = (np.arange(5), np.arange(5, 12))
    rows = RowBuilder(0, "partition", config.workload.layout, workload.train.lengths)
    row = row_of(rows, 0, share, replica.compute(replica.load(share), lambda: 1.0))
    assert (row.layout, row.micro_batches) == ("packed", 2)
    assert row.padded_tokens == row.real_tokens == workload.train.lengths[:12].sum()
    assert row.padded_tokens2 == row.real_tokens2 == (workload.train.lengths[:12] ** 2).sum()
    assert row.max_seq_len_in_batch == workload.train.lengths[:12].max()


@pytest.mark.parametrize("architecture", ["distilbert", "llama"])
def test_evaluation_gives_what_padded_batches_give(architecture, tmp_path):
    sums = []
    for layout in ("padded", "packed"):
        workload = build_workload(configured(tmp_path, architecture, layout))
        assert workload.eval is not None
        model = workload.build_model(0).eval()
        with torch.no_grad():
            sums.append(workload.eval_sums(model, batch_of(workload, np.arange(8), data=workload.eval)))
    padded, packed = sums
    assert packed == pytest.approx(padded, rel=1e-5)


@pytest.mark.parametrize(
    ("architecture", "more", "leaks"),
    [("distilbert", (), True), ("gpt2", (), False), ("gpt2", ("workload.use_cache=true",), True), ("llama", (), False)],
)
def test_what_is_seen_of_flattened_rows_is_kept_and_nothing_refused(architecture, more, leaks, tmp_path, caplog):
    workload = build_workload(configured(tmp_path, architecture, "flattened", more=more))
    with caplog.at_level("WARNING", "dynbench"):
        found = check_rows(workload, 0, CPU, None)
    assert max(found["lengths"]) == workload.train.lengths.max()
    assert (found["leak"] is not None, found["foreign_gradient"] > 0) == (leaks, leaks)
    assert sum("it trains all the same" in record.getMessage() for record in caplog.records) == leaks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            (f"workload.name=causal_lm workload.size=tiny workload.use_cache=true workload.layout={layout}", message)
            for layout in ("padded", "packed")
            for message in [r"workload\.use_cache: true, but .*workload\.layout to flattened"]
        ),
        ("workload.use_cache=true workload.layout=flattened", r"workload\.use_cache: true, but .*of causal_lm"),
        (
            "workload.layout=packed workload.name=mine.py:Mine",
            r"workload\.layout: 'packed' rows are not made by mine\.py:Mine.*text_classification, causal_lm",
        ),
    ],
)
def test_settings_that_no_row_is_made_with(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings.split())


@pytest.mark.parametrize(("lengths", "expected"), [([5], [0, 0]), ([9, 2, 4], [1, 2, 0]), (range(1, 101), [0, 99])])
def test_which_samples_the_proof_is_on(lengths, expected):
    data = TokenisedData.from_samples([[1] * length for length in lengths], np.zeros(len(lengths), np.int64))
    found = samples_to_check(data).tolist()
    assert found == expected if len(lengths) < 6 else [found[0], found[-1], len(found)] == [*expected, 6]


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
    assert isinstance(workload, Saves)
    model = workload.build_model(0).eval()
    workload.save(tmp_path / "saved", model.state_dict())
    read = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    assert read.config._attn_implementation == "sdpa"
    tokens = workload.train.joined(np.array([0]))
    row = {"input_ids": torch.from_numpy(tokens)[None], "boundaries": Boundaries((len(tokens),))}
    torch.testing.assert_close(read(input_ids=row["input_ids"]).logits, model(**row).logits)
    assert Saved(tmp_path / "saved").config(("workload.layout=packed",)).workload.layout == "padded"
