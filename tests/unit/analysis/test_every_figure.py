"""Every figure is looked at: those of recorded runs in the goldens, those of plans and of many arms here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from golden.accepted import read_accepted
from golden.layout import WATCHED, looked_at

from dynbench.analysis.figures import FIGURES, draw_figures
from dynbench.analysis.figures.views import ArmView
from dynbench.analysis.merge import merge_run
from dynbench.config.layers import load_config
from dynbench.experiment.solve_run import SolveOptions, run_solve
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.schedule.traces import Trace


@pytest.mark.slow
def test_figures_of_plans_and_of_many_arms_are_drawn_without_a_fault_as_all_others_are(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    lengths = np.clip(np.random.default_rng(3).lognormal(3, 1, 500).astype(np.int64), 2, 300)
    options = SolveOptions([Trace("made", lengths, "here")], (2, 4), ("static", "partition", "prefix"), steps=8)
    few = [merge_run(make_run(policy)) for policy in ("static", "partition")]
    with looked_at() as drawn:
        draw_figures("solve", run_solve(load_config(), options, RunStore(tmp_path)).run, tmp_path)
        draw_figures("train", [ArmView(f"{number} of many arms", (few[number % 2],)) for number in range(12)], tmp_path)
    assert {name: found for name, found in drawn.items() if found} == {}
    files = [
        file
        for name in WATCHED
        for key, value in read_accepted(name).values.items()
        for file in ([key] if "/figures/" in key else value if key.endswith("/figures") else ())
    ]
    assert {Path(file).stem for file in files} | set(drawn) >= {name for named in FIGURES.values() for name in named}
