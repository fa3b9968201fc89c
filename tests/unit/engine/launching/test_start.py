"""What ranks wait for before they start: the launcher imports no package that it does not need until then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOT_NEEDED = ("accelerate", "datasets", "matplotlib", "pandas", "polars", "scipy", "transformers")
LAUNCHER = """
import json, sys
from pathlib import Path
from dynbench.config.layers import load_config
from dynbench.engine.launching import run_launch
from dynbench.experiment.training import run_training
from dynbench.runs.store import RunStore

def ranks(*_):
    print(json.dumps([name for name in json.loads(sys.argv[2]) if name in sys.modules]))
    sys.exit(0)

run_launch.launch_ranks = ranks
run_training(load_config(None, json.loads(sys.argv[3])), RunStore(Path(sys.argv[1])), figures=True)
"""
RANK = """
import json, sys
from dynbench.config.layers import load_config
from dynbench.engine.rank import worker
from dynbench.workloads.registry import build_workload, import_model_code

config = load_config(None, json.loads(sys.argv[1]))
workload = build_workload(config)
import_model_code(config.workload)
before = set(sys.modules)
workload.build_model(0)
late = sorted(name for name in set(sys.modules) - before if name.startswith("transformers."))
print(json.dumps([late, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    articles = tmp_path / "articles.json"
    articles.write_text(json.dumps([{"id": n, "title": "t", "text": f"text {n}"} for n in range(200)]))
    workload = ("name=causal_lm", "size=tiny", "dataset=json", f"data_path={articles}", f"cache_dir={tmp_path}")
    return [*(f"workload.{each}" for each in workload), "launch.nproc=2", "launch.device=cpu"]


@pytest.mark.slow
def test_the_launcher_imports_nothing_that_can_wait(tmp_path: Path, settings: list[str]) -> None:
    arguments = [str(tmp_path / "results"), json.dumps(NOT_NEEDED), json.dumps(settings)]
    ended = subprocess.run([sys.executable, "-c", LAUNCHER, *arguments], capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout) == [], ended.stderr


@pytest.mark.slow
def test_what_a_rank_imports_while_it_waits_is_what_its_model_is_made_by(settings: list[str]) -> None:
    arguments = [json.dumps(settings), json.dumps(["datasets", "matplotlib", "polars", "tensorboard"])]
    ended = subprocess.run([sys.executable, "-c", RANK, *arguments], capture_output=True, text=True, check=True)
    late, not_needed = json.loads(ended.stdout)
    assert (late, not_needed) == ([], [])
