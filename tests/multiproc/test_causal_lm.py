"""A language model on two real ranks: norms and clipping on both alike, its perplexity, and the model that is kept."""

from __future__ import annotations

import math

import pytest
from multiproc.launches import Launch, rows_of

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summary_of
from dynbench.engine.rank.saved import Saved, evaluate_saved
from dynbench.runs.columns import read_columns

pytestmark = pytest.mark.multiproc

LANGUAGE = (
    *("workload.name=causal_lm", "workload.size=tiny", "workload.max_length=24", "workload.dropout=0"),
    *("schedule.mode=dynamic", "train.max_grad_norm=1.5", "train.schedule=linear", "train.save_model=true"),
)


def test_a_language_model_trains_on_real_ranks(launch: Launch) -> None:
    run = launch(*LANGUAGE)
    rows = rows_of(run)
    norms = rows.pivot(on="rank", index="step", values="grad_norm")
    assert norms["0"].to_list() == norms["1"].to_list() and norms["0"].min() > 0
    assert rows["clipped"].to_list() == [int(norm > 1.5) for norm in rows["grad_norm"]]
    assert {"grad_norm", "clipped"} <= set(read_columns(run.ranks_dir))
    assert (rows["weight"] == rows["real_tokens"] - rows["local_batch"]).all()

    summary = summary_of(merge_run(run))
    found = summary["eval"]
    assert isinstance(found, dict) and "accuracy" not in found
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"])) and found["unigram_perplexity"] > 10
    for name in ("best", "last"):
        again = evaluate_saved(Saved(run.path / "model" / name, run.config_file).config())
        assert again["loss"] == pytest.approx(found["loss"], rel=1e-6)
        assert again["unigram_perplexity"] == found["unigram_perplexity"]
