"""What ranks wait for before they start: the launcher imports no package that it does not need until then."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NOT_OF_THE_LAUNCHER = ("accelerate", "datasets", "matplotlib", "pandas", "polars", "scipy", "transformers")
NOT_OF_A_RANK = ("datasets", "matplotlib", "polars", "tensorboard")
PROGRAM = """
import json, os, sys
from pathlib import Path
from dynbench.config.layers import load_config
from dynbench.engine.launching import run_launch
from dynbench.experiment.training import run_training
from dynbench.runs.store import RunStore

config = load_config(None, json.loads(sys.argv[2]))

def imported(names):
    return [name for name in names if name in sys.modules]

def ranks(*_):
    launcher = imported(json.loads(sys.argv[3]))
    from dynbench.engine.rank import worker
    from dynbench.workloads.registry import build_workload, import_model_code

    workload = build_workload(config)
    import_model_code(config.workload)
    before = set(sys.modules)
    workload.build_model(0)
    late = sorted(name for name in set(sys.modules) - before if name.startswith("transformers."))
    print(json.dumps([launcher, imported(json.loads(sys.argv[4])), late]), flush=True)
    os._exit(0)

run_launch.launch_ranks = ranks
run_training(config, RunStore(Path(sys.argv[1])), figures=True)
"""


@pytest.mark.slow
def test_the_launcher_imports_nothing_that_can_wait_and_a_rank_all_that_its_model_is_made_by(tmp_path):
    """A rank imports while it waits for its data; the launcher's end stands for a rank's beginning."""
    articles = tmp_path / "articles.json"
    articles.write_text(json.dumps([{"id": n, "title": "t", "text": f"text {n}"} for n in range(200)]))
    workload = ("name=causal_lm", "size=tiny", "dataset=json", f"data_path={articles}", f"cache_dir={tmp_path}")
    settings = [*(f"workload.{each}" for each in workload), "launch.nproc=2", "launch.device=cpu"]
    given = map(json.dumps, (settings, NOT_OF_THE_LAUNCHER, NOT_OF_A_RANK))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "results"), *given]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    assert json.loads(ended.stdout) == [[], [], []], "of the launcher, of a rank, and late"
