"""A made-up comparison in a registry: what `compare` leaves behind, without launching anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pixel import png

from dynbench.analysis import analyze
from dynbench.config.layers import load_config
from dynbench.config.schema import dump_config
from dynbench.experiment import compare, offline_plans
from dynbench.experiment.launch_plan import apart, plan_state
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

SUMMARY = {
    "policy": "static",
    "launcher": "torchrun",
    "world_size": 2,
    "global_batch": 64,
    "steps": 30,
    "warmup_steps": 5,
    "step_time_ms": {"mean": 200.0, "p50": 190.0, "p95": 290.0, "total": 6000.0},
    "throughput_tokens_per_s": {"mean": 5000.0, "p95": 6000.0},
    "padding_ratio": 2.5,
    "wait_fraction": 0.25,
    "plan_fraction": 0.001,
}


def comparison(candidate: str = "partition", **changes: object) -> dict[str, object]:
    """One comparison object as `analyze --json` prints it."""
    return {
        "baseline": "static",
        "candidate": candidate,
        "verdict": "FASTER",
        "reason": "the interval lies above 1",
        "level": "step",
        "speedup": 1.25,
        "ci95": [1.2, 1.3],
        "launches": 4,
        "same_work": changes.get("level", "step") in ("step", "window"),
        "loss_max_rel_diff": 1.5e-6,
        "improvement_percent": {"step_time_ms.mean": 20.0, "padding_ratio": 40.0},
        **changes,
    }


MakeComparison = Callable[..., Run]
Reported = Callable[..., ReportInput]


@pytest.fixture
def make_comparison(store: RunStore) -> MakeComparison:
    """Makes a comparison from what each comparison object has other than the defaults.

    `launches` are per arm, `summary` is laid over every run's, `summaries` and `flags` over those of an arm, and
    `planned` makes it one of `compare`, `question` says what it asks, and `pairs` are its other pairs of arms.
    """

    def make(
        *changes: dict[str, object],
        checks: list[dict[str, object]] | None = None,
        launches: int = 1,
        summary: dict[str, object] | None = None,
        planned: bool = False,
        summaries: Mapping[str, dict[str, object]] = MappingProxyType({}),
        flags: Mapping[str, dict[str, object]] = MappingProxyType({}),
        question: str | None = None,
        pairs: Sequence[dict[str, object]] = (),
    ) -> Run:
        comparisons = [comparison(**change) for change in changes]
        names = ["static", *(str(item["candidate"]) for item in comparisons)]
        arms: list[dict[str, object]] = []
        members: list[dict[str, object]] = []
        for name in names:
            runs = [store.create("train", name) for _ in range(launches)]
            for run in runs:
                own = {"schedule.mode": "static", **flags.get(name, {})}
                write_text(run.config_file, dump_config(load_config(flags=own)))
                known = SUMMARY | (summary or {}) | summaries.get(name, {})
                members.append({"id": run.id, "name": f"{name}-1", "summary": known})
            arms.append({"name": name, "runs": [run.id for run in runs]})
        folder = store.create("compare", "demo")
        if planned:
            plan_state("demo", "static", apart(names, "asked for"), 2, dict.fromkeys(names, 0)).write(folder.path)
        folder.figures_dir.mkdir()
        for figure in ("timeline", "unheard_of"):
            (folder.figures_dir / f"{figure}.png").write_bytes(png())
        write_json(
            folder.path / "comparison.json",
            {
                "question": question,
                "runs": members,
                "arms": arms,
                "comparisons": comparisons,
                "pairs": [comparison(**pair) for pair in pairs],
                "checks": checks or [],
                "figures": [str(folder.figures_dir / f"{figure}.png") for figure in ("timeline", "unheard_of", "gone")],
            },
        )
        return folder

    return make


@pytest.fixture
def reported(store: RunStore, make_comparison: MakeComparison) -> Reported:
    """Makes such a comparison, and gives what a report reads of it."""

    def read(*changes: dict[str, object], **given: Any) -> ReportInput:
        make_comparison(*changes, **given)
        return find_report_input(store, None)

    return read


@pytest.fixture(autouse=True)
def _figures(unrendered: None) -> None:
    """None is rendered: the figures' own tests do that."""


@pytest.fixture
def unreported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons end without figures and reports."""
    monkeypatch.setattr(offline_plans, "draw_figures", lambda *_: [])
    monkeypatch.setattr(analyze, "draw_figures", lambda *_: [])
    monkeypatch.setattr(compare, "write_report", lambda *_, **__: tmp_path)
