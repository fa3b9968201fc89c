"""A workload of the user's own on real ranks and in a probe, started where its file is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from multiproc.launches import fork
from own import write_own

from dynbench.runs.store import RunStore

pytestmark = pytest.mark.multiproc

TINY = (
    *("workload.max_length=24", "train.global_batch=8", "train.warmup_steps=1", "train.steps=4"),
    *("train.eval_samples=16", "launch.nproc=2", "launch.threads=1", "launch.device=cpu"),
)


def dynbench(folder: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    """Exit code and JSON object of a command started in `folder`."""
    sets = [word for setting in TINY for word in ("--set", setting)]
    process = fork(folder / "results", *arguments, *sets, "--json", settings=(), cwd=folder)
    stdout, _ = process.communicate(timeout=300)
    return process.returncode, json.loads(stdout)


def test_a_module_of_the_current_folder_trains_on_real_ranks(tmp_path: Path) -> None:
    write_own(tmp_path)
    code, shown = dynbench(tmp_path, "train", "--workload", "mine:Mine", "--mode", "dynamic")
    assert code == 0, shown
    assert shown["summary"]["rows"] == 2 * (1 + 4)
    assert shown["summary"]["eval"]["accuracy"] is None and shown["summary"]["eval"]["loss"] > 0
    run = RunStore(tmp_path / "results").resolve("@latest")
    kept = run.config().workload
    assert (kept.name, kept.import_from, len(kept.code_digest)) == ("mine:Mine", str(tmp_path), 16)
    data = run.env()["data"]
    assert data["workload"]["digest"] == kept.code_digest and list(data["workload"]["beside"]) == [
        "length_regression.py"
    ]


def test_an_error_in_its_step_is_one_line_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    write_own(tmp_path, "    def loss(self, model, batch):\n        return model(batch['words'])\n")
    code, shown = dynbench(tmp_path, "train", "--workload", "mine.py:Mine", "--launcher", "virtual")
    assert (code, shown["error"]["kind"]) == (3, "worker")
    assert "mine.py:6: KeyError: 'words'" in shown["error"]["message"]
    run = RunStore(tmp_path / "results").resolve("@latest")
    assert "Traceback" in (run.logs_dir / "rank_0.log").read_text(encoding="utf-8")


def test_a_probe_tells_the_line_too_and_tries_no_further(tmp_path: Path) -> None:
    write_own(tmp_path, "    def loss(self, model, batch):\n        return model(batch['words'])\n")
    code, shown = dynbench(tmp_path, "probe", "--workload", "mine:Mine")
    assert (code, shown["error"]["kind"]) == (3, "worker")
    assert "mine.py:6: KeyError: 'words'" in shown["error"]["message"]


def test_a_parameter_that_fsdp_cannot_divide_is_named_before_the_first_step(tmp_path: Path) -> None:
    """Not before the launch: what a model of the user's own has is known once their code has run, in the ranks."""
    scalar = "        model.scale = __import__('torch').nn.Parameter(__import__('torch').tensor(1.0))\n"
    write_own(
        tmp_path,
        f"    def build_model(self, seed):\n        model = super().build_model(seed)\n{scalar}        return model\n",
    )
    code, shown = dynbench(tmp_path, "train", "--workload", "mine:Mine", "--set", "sync.name=fsdp")
    assert (code, shown["error"]["kind"]) == (2, "usage"), shown
    assert "parameter scale is a scalar, which fully_shard cannot divide" in shown["error"]["message"]
