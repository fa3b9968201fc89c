"""Every compressor under every strategy that takes one: ranks keep one model, and get where they should."""

from __future__ import annotations

import polars as pl
import pytest
from compress_jobs import in_flight, measured, trained
from compressors import FORMS, NAMED, OWN, settings
from sampled import sampled
from strategy_jobs import train_run
from warm import WarmRanks

from dynbench.analysis.merge import merge_run
from dynbench.analysis.summary import summarise
from dynbench.config.layers import load_config
from dynbench.config.rules import check_rules
from dynbench.plugins import STRATEGIES
from dynbench.runs.records import read_columns

pytestmark = pytest.mark.multiproc

SYNC = ("flat", "overlap", "bucketed", "ddp", "zero1", "fsdp", "diloco", "local_sgd")
NEAR = {
    "fp16": 0.01,
    "bf16": 0.03,
    "int8": 0.1,
    "qsgd bits=8": 0.1,
    "threshold threshold=0": 1e-4,
    "fp8": 0.3,
    "fp16_torch": 0.01,
}
"""Forms that hardly leave anything out, and how far from one process's weights they may get in all steps, as a part of
what the weights moved by."""
SAMPLE = ["int8", "fp8", "topk ratio=0.3"]
"""One of every way, with error feedback and without."""


def judge(results: list[dict[str, tuple[str, float, float, int]]], sync: str) -> None:
    first, *others = results
    for form, (word, apart, moved, sent) in first.items():
        assert [other[form][0] for other in others] == [word] * len(others), f"{form}: one model on all ranks"
        assert 0 < moved < 100, f"{form}: trains"
        assert sent > 0
        if form in NEAR and STRATEGIES[sync].exact:
            assert apart < NEAR[form] * moved, f"{form}: {apart} from the weights of one process, {moved} on its way"


@pytest.mark.parametrize("sync", sampled((*SYNC, "naive", "zero1_torch"), SYNC[:-1]))
def test_ranks_keep_one_model(ranks: WarmRanks, sync: str) -> None:
    judge(ranks(trained, sync, SAMPLE), sync)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("sync", SYNC)
def test_ranks_keep_one_model_with_every_compressor(ranks: WarmRanks, sync: str) -> None:
    judge(ranks(trained, sync, [form for form in (*FORMS, *OWN, "fp16_torch") if form not in SAMPLE]), sync)


@pytest.mark.parametrize("sync", sampled(("bucketed", "zero1", "fsdp"), ["bucketed"]))
def test_four_ranks_keep_one_model(four: WarmRanks, sync: str) -> None:
    judge(four(trained, sync, [*SAMPLE, "signsgd error_feedback=false"]), sync)


def test_several_in_flight_come_out_in_order(ranks: WarmRanks) -> None:
    for found in ranks(in_flight, SAMPLE):
        assert found == [True] * len(SAMPLE)


REFUSES = [name for name, entry in STRATEGIES.items() if not entry.compresses or not entry.trains]


@pytest.mark.parametrize("sync", REFUSES)
def test_strategies_that_ask_for_no_means_refuse_by_name(sync: str) -> None:
    plain = load_config(None, [f"sync.name={sync}"])
    for name in NAMED:
        config = plain.model_copy(update={"compress": plain.compress.model_copy(update={"name": name})})
        (problem,) = check_rules(config, 3 if STRATEGIES[sync].servers else 2)
        assert problem.startswith(f"compress.name: {name!r} compresses") and sync in problem


def test_a_run_says_what_compression_did_and_leaves_whole_steps_out_of_its_ratio(ranks: WarmRanks, new_run) -> None:
    run, config = new_run(*settings("topk ratio=0.3"), "compress.start_step=2", "launch.nproc=2")
    ranks(train_run, str(run.path), config)
    rows = pl.read_parquet(merge_run(run).run.path / "merged_metrics.parquet").sort("step", "rank")
    assert rows["compresses"].to_list() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {"compress_ms", "index_bytes", "residual_mb"} <= set(read_columns(run.ranks_dir))
    compressed = rows.filter(pl.col("compresses") == 1)
    assert (compressed["density"] > 0.29).all() and (compressed["density"] < 0.35).all()
    assert (compressed["residual_mb"] > 0).all() and (compressed["index_bytes"] > 0).all()
    ratio = compressed["gradient_bytes_raw"].sum() / compressed["gradient_bytes_wire"].sum()
    summary = summarise(run)
    assert summary["compression_ratio"] == pytest.approx(ratio)
    compression = summary["compression"]
    assert isinstance(compression, dict) and compression["residual_mb"] == compressed["residual_mb"].max()
    share = compressed["index_bytes"].sum() / compressed["payload_bytes"].sum()
    assert compression["index_share"] == pytest.approx(share) and 0 < share < 0.5


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("form", ["topk", "powersgd"])
def test_the_error_is_measured_now_and_then(ranks: WarmRanks, form: str, shards: bool) -> None:
    for (first, error, sent), (second, _, unmeasured), (third, last, _) in ranks(measured, form, shards):
        assert first == pytest.approx(error, rel=1e-4) and third == pytest.approx(last, rel=1e-4) and error > 0
        assert second is None and sent == unmeasured, "what is sent to measure is not counted"
