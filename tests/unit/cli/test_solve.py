"""`dynbench solve`: traces, settings and files that it takes, and what it makes of them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from said import Cli

from dynbench.cli import solve_view
from dynbench.runs.store import RunStore
from dynbench.schedule import solve as solve_module

TWO = "--world-size 2 --batch-per-rank 4 --steps 6"
QUICK = f"{TWO} --policy static,partition,prefix"
Results = list[dict]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    lengths = np.clip(np.random.default_rng(1).lognormal(3, 1, 200).astype(int), 2, 300)
    pl.DataFrame({"length": lengths}).write_parquet(tmp_path / "some.parquet")
    return tmp_path / "some.parquet"


@pytest.fixture
def solve(store: RunStore, cli: Cli) -> Cli:
    return lambda line, code=0: cli(f"solve {line} --no-figures", code=code)


@pytest.fixture
def solved(solve: Cli) -> Callable[..., Results]:
    return lambda line: solve(f"{line} --json").json["results"]


@pytest.fixture
def refused(solve: Cli) -> Callable[..., str]:
    """The message of a mistake, which is one line, under --json."""

    def run(line: str, code: int = 2) -> str:
        message = str(solve(f"{line} --json", code=code).json["error"]["message"])
        assert "\n" not in message
        return message

    return run


@pytest.mark.slow
def test_a_solve_is_an_entry_of_the_registry(store, trace, solve, cli):
    found = solve(f"{trace} {QUICK} --name first --json").json
    made = store.resolve("first")
    assert found["run"] == {"id": made.id, "name": "first", "path": str(made.path), "status": "completed"}
    assert json.loads((made.path / "results.json").read_text())["results"] == found["results"]
    assert made.env()["data"]["traces"][0]["samples"] == 200
    assert cli("runs show first --json").json["run"]["command"] == "solve"


def test_one_step_in_file_order_is_that_of_the_file_whose_name_may_stand_twice(solved, tmp_path):
    file = tmp_path / "t.npy"
    np.save(file, [5, 1, 1, 1, 50, 50])
    few = "--world-size 2 --global-batch 4 --steps 1 --order file --policy"
    found = solved(f"{file} {file} {few} static,partition")
    assert [(r["trace"], r["mean_max_cost"]) for r in found] == [("t", 10), ("t", 5), ("t#2", 10), ("t#2", 5)]
    (padded,) = solved(f"{file} {few} static --set workload.pad_to_multiple_of=64")
    assert padded["mean_max_cost"] == 128


def test_the_number_of_steps_is_shown_with_the_lines_that_were_cut(solve, trace, monkeypatch):
    few = f"{trace} --world-size 2 --policy static,window --window 3"
    assert "means over 6 steps\n" in solve(f"{few} --steps 6").out
    monkeypatch.setattr(solve_module, "LINE_LIMIT_S", 0.0)
    (note,) = [line for line in solve(few).lines if line.startswith("means over 102 steps")]
    assert note.endswith("some G=2: static 1, window W=3 3")


def test_where_nothing_is_given_back_nothing_is_recommended(solve, tmp_path):
    """Equal lengths: every policy plans what static plans."""
    constant = tmp_path / "constant.csv"
    constant.write_text("length\n" + "12\n" * 400)
    said = solve(f"{constant} {QUICK}")
    assert said.lines[-1].startswith("next     stay with static")
    assert " * " not in said.out, "1.00x is starred"


def line(ranks: int, policy: str, speedup: float | None, trace: str = "some", spread: float = 1.0) -> dict:
    named = {"trace": trace, "world_size": ranks, "policy": policy, "window": 1}
    return {**named, "speedup_vs_static": speedup, "step_length_spread": spread}


def advised(*results: dict) -> dict[int, str | None]:
    best = solve_view.best_by_ranks(results).items()
    return {ranks: found and f"{found['trace']} {found['policy']}" for ranks, found in best}


def test_the_best_is_told_of_every_number_of_ranks_of_the_first_trace_that_gains():
    static = [line(ranks, "static", 1.0, trace) for trace in ("flat", "some") for ranks in (8, 2, 4)]
    flat = [line(ranks, "partition", 1.004, "flat") for ranks in (8, 2, 4)]
    some = [line(8, "partition", 1.5), line(8, "packed", 1.6), line(2, "prefix", 0.9), line(4, "prefix", 1.2)]
    sorted_steps = line(2, "group_by_length", 2.0, spread=5.0)
    assert advised(*static, *flat, *some, sorted_steps) == {2: None, 4: "some prefix", 8: "some packed"}
    assert advised(*static[:2]) == {2: "flat partition", 8: "flat partition"}
    assert advised(line(3, "partition", None)) == {3: "some partition"}, "with no static to be held against"


def test_the_lines_also_go_into_a_file(solve, trace):
    solve(f"{trace} {QUICK} --csv lines.csv")
    static, partition, prefix = csv.DictReader(Path("lines.csv").read_text().splitlines())
    assert [row["policy"] for row in (static, partition, prefix)] == ["static", "partition", "prefix"]
    assert partition["local_batch_min"] and partition["plan_ms_p50"] and not partition["greedy_gap"]
    assert prefix["greedy_gap_max_cost_max"] == "0.0"


def test_a_trace_is_written_and_read_again(solve, solved, tmp_path):
    solve(f"gsm8k {QUICK} --max-length 100 --write-trace {tmp_path}/cut.csv")
    assert solved(f"{tmp_path}/cut.csv {QUICK}")[0]["samples"] == 7_473
    assert pl.read_csv(tmp_path / "cut.csv")["length"].max() == 100


CUT = {
    "": (None, 0, 256, 7),
    "--set workload.max_length=100": (100, 7, 100, 0),
    "-c max.yaml --max-length 350": (350, 3, 300, 3),
    "--max-length 700": (700, 0, 256, 7),
}
"""Options, the longest sample that they ask for, how many are cut here, where `train` cuts, and how many are longer."""


@pytest.mark.parametrize("options", CUT)
def test_what_train_would_cut_stands_beside_the_numbers(store, solve, options):
    max_length, cut, train_cuts_at, longer = CUT[options]
    np.save("t.npy", [10] * 40 + [290] * 4 + [600] * 3)
    Path("max.yaml").write_text("workload: {max_length: 300}\n")
    solve(f"t.npy {QUICK} {options}")
    expected = {"cut_samples": cut, "train_max_length": train_cuts_at, "longer_than_train": longer}
    made = store.resolve("@latest")
    (of_run,) = made.env()["data"]["traces"]
    (row,) = csv.DictReader((made.path / "traces.csv").open())
    results = json.loads((made.path / "results.json").read_text())["results"]
    for found in (*results, of_run, {key: int(row[key]) for key in expected}):
        assert found.items() >= expected.items()
    assert [result["max_length"] for result in results] == [max_length] * len(results)


def test_a_batch_that_does_not_fit_is_recorded_as_failed(store, trace, refused):
    assert "8 samples do not fit" in refused(f"{trace} {QUICK} --capacity 3", code=4)
    (failed,) = store.list()
    record = failed.record()
    assert (record.status, record.exit_code, record.failure.kind) == ("failed", 4, "memory")


@pytest.mark.slow
def test_it_runs_without_torch(tmp_path):
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from dynbench.cli.main import main; sys.exit(main(['solve', 'sst2', *'--world-size 4 --steps 2'.split()]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipped hf_batch_rebalance (sst2 G=4): needs the package torch" in done.stderr
    assert len(list(tmp_path.glob("results/*/figures/*.png"))) == 1


@pytest.mark.slow
def test_a_second_column_adds_to_the_costs(store, trace, tmp_path, solve, solved, refused):
    def costs(line: str) -> dict[str, float]:
        return {r["policy"]: r["mean_max_cost"] for r in solved(line)}

    two, second = tmp_path / "two.csv", f"{QUICK} --second-column patches"
    patches = pl.Series("patches", np.random.default_rng(1).choice([0, 0, 196], 200))
    pl.read_parquet(trace).with_columns(patches).write_csv(two)
    plain, both = costs(f"{two} {QUICK}"), costs(f"{two} {second}")
    assert all(both[policy] > cost for policy, cost in plain.items())
    assert costs(f"{two} {second} --second-weight 0") == plain
    assert costs(f"--dataset lengths --data-path {two} {second}") == both
    printed = solve(f"{two} {second} --second-weight 2").out
    assert "--second-column patches" in " ".join(printed[printed.index("next") :].split())
    assert store.resolve("@latest").config().schedule.second_weight == 2
    assert "no column 'patch'" in refused(f"{two} {QUICK} --second-column patch")
    assert "'patches'" in refused(f"{trace} {second}")
    assert "not read by dataset 'embedded'" in refused(f"embedded {second}")
    assert "distribution" in refused(second)


@pytest.mark.parametrize(
    "text", ["12\n40\n7\n", "length,kind\n12,a\n40,b\n7,c\n", '{"length": 12}\n{"length": 40}\n7\n']
)
def test_lengths_are_read_from_standard_input(solved, refused, monkeypatch, text):
    def type_in(content: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))

    type_in(text)
    one = "--world-size 1 --batch-per-rank 3 --steps 1 --policy static --order file"
    assert [(r["trace"], r["mean_max_cost"]) for r in solved(f"- {one}")] == [("stdin", 120)]
    type_in("length\n3\n-4\n")
    assert refused("-").startswith("standard input: row 2: length -4,")
