from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dynbench.cli import solve_view
from dynbench.cli.main import main
from dynbench.runs.run_record import Status
from dynbench.runs.store import RunStore
from dynbench.schedule import solve as solve_module

QUICK = ("--steps", "6", "--policy", "static,partition,prefix", "--world-size", "2", "--batch-per-rank", "4")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("DYNBENCH_RESULTS", str(tmp_path / "results"))
    return RunStore(tmp_path / "results")


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


def test_one_step_in_file_order_is_that_of_the_file(store, tmp_path, capsys):
    np.save(tmp_path / "t.npy", [5, 1, 1, 1, 50, 50])
    found = solved(
        capsys, tmp_path / "t.npy", "--world-size", "2", "--global-batch", "4", "--steps", "1", "--order", "file",
        "--policy", "static,partition", "--no-figures",
    )  # fmt: skip
    assert [r["mean_max_cost"] for r in found["results"]] == [10, 5]


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


def test_padding_to_a_multiple_is_priced(store, trace, capsys):
    padded = solved(capsys, trace, *QUICK, "--no-figures", "--set", "workload.pad_to_multiple_of=64", "--steps", "1")
    assert all(result["mean_max_cost"] % 64 == 0 for result in padded["results"])


def test_two_traces_of_one_name_are_told_apart(store, trace, capsys):
    found = solved(capsys, trace, trace, "--policy", "static", "--world-size", "2", "--steps", "2", "--no-figures")
    assert [r["trace"] for r in found["results"]] == ["some", "some#2"]


@pytest.mark.slow
def test_where_nothing_is_given_back_nothing_is_recommended(store, tmp_path, capsys):
    """Equal lengths: every policy plans what static plans."""
    constant = tmp_path / "constant.csv"
    constant.write_text("length\n" + "12\n" * 400)
    out, _ = run(capsys, constant, "--world-size", "2,4", "--policy", "all", "--steps", "8")

    assert out.splitlines()[-1].startswith("Next: stay with static")
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


def test_a_data_set_is_planned_as_train_loads_it(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))
    found = solved(capsys, "--dataset", "embedded", "--subset", "300", *QUICK, "--no-figures")
    named = solved(capsys, "embedded", "--subset", "300", *QUICK, "--no-figures")
    assert [r["mean_max_cost"] for r in named["results"]] == [r["mean_max_cost"] for r in found["results"]]
    assert {(r["trace"], r["samples"]) for r in found["results"]} == {("embedded", 300)}


@pytest.mark.parametrize(
    ("arguments", "max_length", "cut", "train_cuts_at", "longer", "said"),
    [
        ([], None, 0, 256, 7, ["not cut here: 7 samples are longer than 256 tokens"]),
        (["--max-length", "256"], 256, 7, 256, 0, ["cut here: 7 samples were longer than 256 tokens"]),
        (["--set", "workload.max_length=100"], 100, 7, 100, 0, ["cut here: 7 samples were longer than 100 tokens"]),
        (["-c", "{file}"], 300, 3, 300, 0, ["cut here: 3 samples were longer than 300 tokens"]),
        (
            ["-c", "{file}", "--max-length", "350"], 350, 3, 300, 3,
            ["cut here: 3 samples were longer than 350 tokens"],
        ),
        (["--max-length", "700"], 700, 0, 256, 7, []),
    ],
)  # fmt: skip
def test_what_train_would_cut_stands_beside_the_numbers(
    store, tmp_path, capsys, arguments, max_length, cut, train_cuts_at, longer, said
):
    np.save(tmp_path / "t.npy", [10] * 40 + [290] * 4 + [600] * 3)
    (tmp_path / "max.yaml").write_text("workload: {max_length: 300}\n")
    words = [word.format(file=tmp_path / "max.yaml") for word in arguments]
    few = (tmp_path / "t.npy", *QUICK, "--no-figures", *words)
    out, err = run(capsys, *few)
    notes = [line.strip() for line in out.splitlines() if "cut here" in line]
    assert (err, len(notes)) == ("", len(said))
    assert all(note.startswith(text) for note, text in zip(notes, said, strict=True))

    expected = {"cut_samples": cut, "train_max_length": train_cuts_at, "longer_than_train": longer}
    found = solved(capsys, *few)
    for result in found["results"]:
        assert {key: result[key] for key in expected} == expected
        assert result["max_length"] == max_length
    folder = Path(found["run"]["path"])
    kept = json.loads((folder / "env.json").read_text())["data"]["traces"][0]
    (row,) = csv.DictReader((folder / "traces.csv").open())
    assert {key: kept[key] for key in expected} == {key: int(row[key]) for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sst2", "--policy", "partitions"], "--policy: 'partitions' is not a policy"),
        (["sst3"], "sst3: no such trace file or distribution"),
        (["sst2", "--world-size", "8", "--global-batch", "4"], "train.global_batch: 4 is less than the 8 ranks"),
        (["sst2", "--capacity", "0"], "schedule.capacity: 0 is not allowed"),
        (["sst2", "--world-size", "2", "--capacity", "4,0"], "schedule.capacity"),
        (["sst2", "--world-size", "2", "--speeds", "1,1,1"], "schedule.speeds"),
        (["sst2", "--world-size", "4,x"], "'x' is not a whole number"),
        (["sst2", "--world-size", ""], "'' is not a whole number"),
        (["sst2", "--max-length", "0"], "--max-length"),
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


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_it_as_interrupted(tmp_path, signum, exit_code):
    arguments = ["solve", "lognormal", "--steps", "1000000", "--policy", "partition", "--results", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dynbench", *arguments, "--json"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signum, signal.SIG_DFL),  # the tests themselves may run under nohup
    )
    try:
        deadline = time.monotonic() + 60
        while not any(run.status is Status.RUNNING for run in RunStore(tmp_path).list()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signum)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == json.loads(out)["error"]["exit_code"] == exit_code
    (run,) = RunStore(tmp_path).list()
    assert (run.status, run.record().exit_code) == (Status.INTERRUPTED, exit_code)


PACKED = ("--steps", "6", "--world-size", "2", "--batch-per-rank", "4", "--no-figures")


def test_packed_rows_alone_are_planned_under_capacities_in_tokens(store, trace, capsys):
    for asked in (["--policy", "packed"], ["--policy", "partition", "--layout", "packed"]):
        message = refused(capsys, trace, *PACKED, *asked, "--capacity", "40", code=4)
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
    asked = ("--steps", "6", "--policy", "static,partition", "--world-size", "2", "--micro-batches", "2")
    asked = (*asked, "--no-figures")
    lines = solved(capsys, trace, *asked, *given)["results"]
    assert [line["objective"] for line in lines] == [objective] * 2
    out, err = run(capsys, trace, *asked, *given)
    assert ("slots: ranks meet in every micro-batch" in out) == (objective == "slots")
    assert "has no effect" not in err


@pytest.fixture
def two_columns(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3, 1, 200).astype(int), 2, 120)
    frame = pl.DataFrame({"length": lengths, "patches": rng.choice([0, 0, 196], 200)})
    frame.write_csv(tmp_path / "two.csv")
    return tmp_path / "two.csv"


def costs(answer: dict) -> dict[str, float]:
    return {result["policy"]: result["mean_max_cost"] for result in answer["results"]}


@pytest.mark.slow
def test_a_second_column_adds_to_the_costs(store, two_columns, capsys):
    plain = costs(solved(capsys, two_columns, *QUICK))
    second = (two_columns, *QUICK, "--second-column", "patches")
    answer = solved(capsys, *second)
    assert {result["second_weight"] for result in answer["results"]} == {1.0}
    assert all(cost > plain[policy] for policy, cost in costs(answer).items())
    assert costs(solved(capsys, *second, "--second-weight", "0")) == plain
    named = ("--dataset", "lengths", "--data-path", two_columns, *QUICK, "--second-column", "patches")
    assert costs(solved(capsys, *named)) == costs(answer)
    printed = run(capsys, *second, "--second-weight", "2")[0]
    assert "2 tokens per unit of the second column" in printed
    following = " ".join(printed[printed.index("Next:") :].split())
    assert "--second-column patches" in following
    assert store.resolve("@latest").config().schedule.second_weight == 2


def test_a_second_column_that_is_not_there_is_refused(store, trace, two_columns, capsys):
    assert "no column 'patch'" in refused(capsys, two_columns, *QUICK, "--second-column", "patch", code=2)
    assert "'patches'" in refused(capsys, trace, *QUICK, "--second-column", "patches")
    assert "not read by dataset 'embedded'" in refused(capsys, "embedded", *QUICK, "--second-column", "patches")
    assert "distribution" in refused(capsys, *QUICK, "--second-column", "patches")


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
