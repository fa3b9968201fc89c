from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dynbench.cli import solve_view
from dynbench.cli.main import main
from dynbench.schedule import solve as solve_module

QUICK = ("--steps", "6", "--policy", "static,partition,prefix", "--world-size", "2", "--batch-per-rank", "4")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    lengths = np.clip(np.random.default_rng(1).lognormal(3, 1, 200).astype(int), 2, 300)
    pl.DataFrame({"length": lengths}).write_parquet(tmp_path / "some.parquet")
    return tmp_path / "some.parquet"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    assert main(["solve", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def solved(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict:
    return json.loads(run(capsys, *arguments, "--json")[0])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    out, err = run(capsys, *arguments, "--json", code=code)
    error = json.loads(out)["error"]
    assert error["exit_code"] == code
    assert err.startswith(f"error: {error['message']}\n")
    assert "\n" not in error["message"]
    return str(error["message"])


@pytest.mark.slow
def test_a_solve_is_an_entry_of_the_registry(store, trace, capsys):
    found = solved(capsys, trace, *QUICK, "--name", "first")
    made = store.resolve("first")
    record = made.record()
    assert (record.command, record.status, record.exit_code) == ("solve", "completed", 0)
    assert found["run"] == {"id": made.id, "name": "first", "path": str(made.path), "status": "completed"}
    kept = json.loads((made.path / "results.json").read_text())
    assert kept["results"] == found["results"]
    assert made.config().train.seed == 0
    assert made.env()["data"]["traces"][0]["samples"] == 200
    assert main(["runs", "show", "first"]) == 0


def test_one_step_in_file_order_is_that_of_the_file_whose_name_may_stand_twice(store, tmp_path, capsys):
    np.save(tmp_path / "t.npy", [5, 1, 1, 1, 50, 50])
    few = ("--world-size", "2", "--global-batch", "4", "--steps", "1", "--order", "file", "--no-figures")
    found = solved(capsys, tmp_path / "t.npy", tmp_path / "t.npy", *few, "--policy", "static,partition")["results"]
    assert [(r["trace"], r["mean_max_cost"]) for r in found] == [("t", 10), ("t", 5), ("t#2", 10), ("t#2", 5)]
    found = solved(capsys, tmp_path / "t.npy", *few, "--policy", "static", "--set", "workload.pad_to_multiple_of=64")
    assert found["results"][0]["mean_max_cost"] == 128


@pytest.mark.parametrize(
    ("arguments", "windows"),
    [
        ((), [8]),
        (("--set", "schedule.window=3"), [3]),
        (("--set", "schedule.window=1"), [1]),
        (("--set", "schedule.window=3", "--window", "2,4"), [2, 4]),
    ],
)
def test_a_window_that_is_set_is_planned(store, trace, capsys, arguments, windows):
    found = solved(capsys, trace, "--world-size", "2", "--policy", "window", "--steps", "4", "--no-figures", *arguments)
    assert [r["window"] for r in found["results"]] == windows
    added = solved(capsys, trace, *QUICK, "--no-figures", *arguments)["results"]
    assert ("window" in {r["policy"] for r in added}) == bool(arguments and max(windows) > 1)


def test_what_is_not_read_is_said_and_kept(store, trace, capsys):
    unread = ("train.steps=7", "launch.nproc=2", "schedule.policy=prefix")
    sets = [word for text in unread for word in ("--set", text)]
    found, err = run(capsys, trace, "--policy", "static", "--world-size", "2", "--steps", "2", "--no-figures",
                     "--solver", "greedy", *sets, "--json", "--name", "a")  # fmt: skip
    warnings = store.resolve("a").record().warnings
    assert err.splitlines() == [f"warning: {line}" for line in warnings]
    assert warnings[0].startswith("schedule.solver: 'greedy' has no effect: policy 'static'")
    assert warnings[1].startswith("schedule.policy (--policy), train.steps (--steps): no effect on `dynbench solve`")
    assert len(json.loads(found)["results"]) == 1


def test_the_number_of_steps_is_shown_with_the_lines_that_were_cut(store, trace, capsys, monkeypatch):
    few = (trace, "--world-size", "2", "--policy", "static,window", "--window", "3", "--no-figures")
    assert "means over 6 steps\n" in run(capsys, *few, "--steps", "6")[0]
    monkeypatch.setattr(solve_module, "LINE_LIMIT_S", 0.0)
    out = run(capsys, *few)[0]
    (note,) = [line for line in out.splitlines() if line.startswith("means over")]
    assert note.startswith("means over 102 steps, as 100 would split a window, fewer where planning took")
    assert note.endswith("some G=2: static 1, window W=3 3")
    assert [r["steps"] for r in solved(capsys, *few)["results"]] == [1, 3]


def test_settings_reach_the_problem(store, trace, capsys):
    found = solved(
        capsys, trace, *QUICK, "--cost_type", "attention", "--set", "schedule.attention_a=0.01", "--speeds", "1,0.5",
        "--capacity", "7,6", "--seed", "3", "--max-length", "40", "--solver", "greedy", "--no-figures",
    )["results"]  # fmt: skip
    by_policy = {r["policy"]: r for r in found}
    assert {r["cost_type"] for r in found} == {"attention"}
    assert {(r["seed"], r["max_length"]) for r in found} == {(3, 40)}
    assert by_policy["prefix"]["solver"] == "greedy"
    assert by_policy["partition"]["local_batch"]["max"] <= 7
    assert by_policy["partition"]["local_batch"]["min"] < 4


@pytest.mark.slow
def test_where_nothing_is_given_back_nothing_is_recommended(store, tmp_path, capsys):
    """Equal lengths: every policy plans what static plans."""
    constant = tmp_path / "constant.csv"
    constant.write_text("length\n" + "12\n" * 400)
    out, _ = run(capsys, constant, "--world-size", "2,4", "--policy", "all", "--steps", "8")

    assert out.splitlines()[-1].startswith("next     stay with static")
    assert " * " not in out, "1.00x is starred"


def line(ranks: int, policy: str, speedup: float | None, trace: str = "some", spread: float = 1.0) -> dict:
    named = {"trace": trace, "world_size": ranks, "policy": policy}
    return {**named, "speedup_vs_static": speedup, "step_length_spread": spread, "window": 1}


def advised(*results: dict) -> dict[int, str | None]:
    best = solve_view.best_by_ranks(results)
    return {ranks: None if found is None else f"{found['trace']} {found['policy']}" for ranks, found in best.items()}


def test_the_best_is_told_of_every_number_of_ranks_of_the_first_trace_that_gains():
    static = [line(ranks, "static", 1.0, trace) for trace in ("flat", "some") for ranks in (8, 2, 4)]
    flat = [line(ranks, "partition", 1.004, "flat") for ranks in (8, 2, 4)]
    some = [line(8, "partition", 1.5), line(8, "packed", 1.6), line(2, "prefix", 0.9), line(4, "prefix", 1.2)]
    sorted_steps = line(2, "group_by_length", 2.0, spread=5.0)
    assert advised(*static, *flat, *some, sorted_steps) == {2: None, 4: "some prefix", 8: "some packed"}
    assert not any(solve_view._is_best(result, flat) for result in flat)
    assert advised(static[1], static[0]) == {2: "flat partition", 8: "flat partition"}
    assert advised(line(3, "partition", None)) == {3: "some partition"}, "with no static to be held against"


def test_the_lines_also_go_into_a_file(store, trace, tmp_path, capsys):
    run(capsys, trace, *QUICK, "--no-figures", "--csv", tmp_path / "lines.csv")
    with (tmp_path / "lines.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["static", "partition", "prefix"]
    assert rows[1]["local_batch_min"] and rows[1]["plan_ms_p50"] and not rows[1]["greedy_gap"]
    assert rows[2]["greedy_gap_max_cost_max"] == "0.0"


def test_a_trace_is_written_and_read_again(store, tmp_path, capsys):
    run(capsys, "gsm8k", *QUICK, "--no-figures", "--max-length", "100", "--write-trace", tmp_path / "cut.csv")
    found = solved(capsys, tmp_path / "cut.csv", *QUICK, "--no-figures")
    assert found["results"][0]["samples"] == 7_473
    assert pl.read_csv(tmp_path / "cut.csv")["length"].max() == 100


@pytest.mark.parametrize(
    ("arguments", "max_length", "cut", "train_cuts_at", "longer", "said"),
    [
        ([], None, 0, 256, 7, "not cut here: 7 samples are longer than 256 tokens"),
        (["--set", "workload.max_length=100"], 100, 7, 100, 0, "cut here: 7 samples were longer than 100 tokens"),
        (["-c", "max.yaml", "--max-length", "350"], 350, 3, 300, 3, "cut here: 3 samples were longer than 350 tokens"),
        (["--max-length", "700"], 700, 0, 256, 7, ""),
    ],
)
def test_what_train_would_cut_stands_beside_the_numbers(
    store, tmp_path, capsys, monkeypatch, arguments, max_length, cut, train_cuts_at, longer, said
):
    monkeypatch.chdir(tmp_path)
    np.save("t.npy", [10] * 40 + [290] * 4 + [600] * 3)
    Path("max.yaml").write_text("workload: {max_length: 300}\n")
    out, err = run(capsys, "t.npy", *QUICK, "--no-figures", *arguments)
    assert err == "" and [line.strip().startswith(said) for line in out.splitlines() if "cut here" in line] == [
        True
    ] * bool(said)
    found = solved(capsys, "t.npy", *QUICK, "--no-figures", *arguments)
    expected = {"cut_samples": cut, "train_max_length": train_cuts_at, "longer_than_train": longer}
    for result in found["results"]:
        assert result.items() >= {**expected, "max_length": max_length}.items()
    folder = Path(found["run"]["path"])
    assert json.loads((folder / "env.json").read_text())["data"]["traces"][0].items() >= expected.items()
    (row,) = csv.DictReader((folder / "traces.csv").open())
    assert {key: int(row[key]) for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sst2", "--world-size", "8", "--global-batch", "4"], "train.global_batch: 4 is less than the 8 ranks"),
        (["sst2", "--world-size", "2", "--capacity", "4,0"], "schedule.capacity"),
        (["sst2", "--world-size", "2", "--speeds", "1,1,1"], "schedule.speeds"),
        (["sst2", "--world-size", "4,x"], "'x' is not a whole number"),
        (["gsm8k", "--world-size", "1024"], "8192 is more than the 7473 samples"),
        (["sst2", "--cost-type", "measured"], "schedule.cost_type: 'measured' has no coefficients"),
        (["sst2", "gsm8k", "--write-trace", "x.csv"], "2 traces for one file"),
        (["--from-run", "nothing"], "run 'nothing'"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_run(store, capsys, arguments, message):
    assert message in refused(capsys, *arguments)
    assert store.list() == []


def test_a_batch_that_does_not_fit_is_recorded_as_failed(store, trace, capsys):
    message = refused(capsys, trace, *QUICK, "--capacity", "3", code=4)
    assert "8 samples do not fit" in message
    (failed,) = store.list()
    record = failed.record()
    assert (record.status, record.exit_code, record.failure.kind) == ("failed", 4, "memory")


@pytest.mark.slow
def test_it_runs_without_torch(tmp_path):
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from dynbench.cli.main import main\n"
        f"sys.exit(main(['solve', 'sst2', '--world-size', '4', '--steps', '2', '--results', {str(tmp_path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "skipped hf_batch_rebalance (sst2 G=4): needs the package torch" in done.stderr
    assert len(list(tmp_path.glob("*/figures/*.png"))) == 1


PACKED = ("--steps", "6", "--world-size", "2", "--batch-per-rank", "4", "--no-figures")


def test_packed_rows_alone_are_planned_under_capacities_in_tokens(store, trace, capsys):
    for given in (["--policy", "packed"], ["--policy", "partition", "--layout", "packed"]):
        message = refused(capsys, trace, *PACKED, *given, "--capacity", "40", code=4)
        assert "packed tokens is longer than any rank's capacity allows (at most 40 tokens)" in message
    out, said = run(capsys, trace, *PACKED, "--policy", "packed", "--capacity", "400", "--json")
    (line,) = json.loads(out)["results"]
    assert line["layout"] == "packed" and line["capacity_violations"] == 0 and "capacity" not in said
    message = refused(capsys, trace, *PACKED, "--policy", "packed", "--layout", "padded")
    assert "workload.layout: 'padded' with policy 'packed'" in message


AS_FSDP = ("--set", "sync.name=fsdp")


@pytest.mark.slow
@pytest.mark.parametrize(("given", "objective"), [((), "sum"), (AS_FSDP, "slots"), (("--objective", "slots"), "slots")])
def test_several_micro_batches_are_judged_by_when_ranks_meet(store, trace, capsys, given, objective):
    few = ("--steps", "6", "--policy", "static,partition", "--world-size", "2", "--micro-batches", "2", "--no-figures")
    lines = solved(capsys, trace, *few, *given)["results"]
    assert [line["objective"] for line in lines] == [objective] * 2
    out, err = run(capsys, trace, *few, *given)
    assert ("slots: ranks synchronise in every micro-batch" in out) == (objective == "slots")
    assert "has no effect" not in err


@pytest.mark.slow
def test_a_second_column_adds_to_the_costs(store, trace, tmp_path, capsys):
    def costs(*arguments: str | Path) -> dict[str, float]:
        return {r["policy"]: r["mean_max_cost"] for r in solved(capsys, *arguments, *QUICK, "--no-figures")["results"]}

    two, second = tmp_path / "two.csv", ("--second-column", "patches")
    patches = pl.Series("patches", np.random.default_rng(1).choice([0, 0, 196], 200))
    pl.read_parquet(trace).with_columns(patches).write_csv(two)
    plain, both = costs(two), costs(two, *second)
    assert all(both[policy] > cost for policy, cost in plain.items())
    assert costs(two, *second, "--second-weight", "0") == plain
    assert costs("--dataset", "lengths", "--data-path", two, *second) == both
    printed = run(capsys, two, *QUICK, "--no-figures", *second, "--second-weight", "2")[0]
    assert "2 tokens per unit of the second column" in printed
    assert "--second-column patches" in " ".join(printed[printed.index("next") :].split())
    assert store.resolve("@latest").config().schedule.second_weight == 2
    assert "no column 'patch'" in refused(capsys, two, *QUICK, "--second-column", "patch")
    assert "'patches'" in refused(capsys, trace, *QUICK, *second)
    assert "not read by dataset 'embedded'" in refused(capsys, "embedded", *QUICK, *second)
    assert "distribution" in refused(capsys, *QUICK, *second)


@pytest.mark.parametrize(
    "text", ["12\n40\n7\n", "length,kind\n12,a\n40,b\n7,c\n", '{"length": 12}\n{"length": 40}\n7\n']
)
def test_lengths_are_read_from_standard_input(store, tmp_path, capsys, monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    found = solved(capsys, "-", "--world-size", "1", "--batch-per-rank", "3", "--steps", "1", "--policy", "static",
                   "--order", "file", "--no-figures")  # fmt: skip
    assert [(r["trace"], r["mean_max_cost"]) for r in found["results"]] == [("stdin", 120)]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"length\n3\n-4\n")))
    assert refused(capsys, "-").startswith("standard input: row 2: length -4,")
