"""A made-up comparison in a registry: what `compare` leaves behind, without launching anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from compared import compared
from fake_training import RECIPE
from pixel import png

from dynbench.analysis import analyze
from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.recipes import load_recipe
from dynbench.config.schema import dump_config
from dynbench.experiment import compare, offline_plans
from dynbench.experiment.report_input import ReportInput, find_report_input
from dynbench.experiment.reporting import render_report
from dynbench.runs.atomic import write_json, write_text
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

NOTHING: Mapping[str, Any] = MappingProxyType({})
SUMMARY = {
    "launcher": "torchrun",
    "world_size": 2,
    "global_batch": 64,
    "steps": 30,
    "warmup_steps": 5,
    "step_time_ms": {"mean": 200.0, "p50": 190.0, "p95": 290.0, "total": 6000.0},
    "throughput_tokens_per_s": {"mean": 5000.0, "p95": 6000.0},
}


Json = dict[str, Any]


def comparison(**changes: object) -> Json:
    """One comparison object as `analyze --json` prints it."""
    known = {"speedup": 1.25, "ci95": [1.2, 1.3], "improvement_percent": {"step_time_ms.mean": 20.0}, **changes}
    same_work = known.get("level", "step") in ("step", "window")
    return compared(**{"same_work": same_work, **known}).model_dump(mode="json") | changes


def page(subject: ReportInput, language: Any = "en", form: Any = "md", **more: Any) -> str:
    """The report that would lie in the folder of what it is about, with plain spaces."""
    text = render_report(subject, language, form, subject.run.path, **more)
    return text.replace("\N{NO-BREAK SPACE}", " ")


def command(line: str) -> int:
    """The exit code of a command."""
    return main(line.split())


Start = MakeComparison = Callable[..., Run]
Reported = Callable[..., ReportInput]


@pytest.fixture
def make_comparison(store: RunStore) -> MakeComparison:
    """Makes a comparison from what each comparison object has other than the defaults.

    `launches` are per arm, `summary` is laid over every run's, `summaries` over those of an arm, `settings` are an
    arm's own, `pairs` are its other pairs of arms, and `record` is what it keeps besides.
    """

    def make(
        *changes: Json,
        launches: int = 1,
        summary: Mapping[str, object] = NOTHING,
        summaries: Mapping[str, Json] = NOTHING,
        settings: Mapping[str, Sequence[str]] = NOTHING,
        pairs: Sequence[Json] = (),
        **record: object,
    ) -> Run:
        comparisons = [comparison(**change) for change in changes]
        arms: dict[str, list[str]] = {"static": [], **{str(item["candidate"]): [] for item in comparisons}}
        members = []
        for name in (name for name in arms for _ in range(launches)):
            run = store.create("train", name)
            config = load_config(None, ["schedule.mode=static", *settings.get(name, ())])
            write_text(run.config_file, dump_config(config))
            arms[name].append(run.id)
            members.append({"id": run.id, "name": f"{name}-1", "summary": SUMMARY | summary | summaries.get(name, {})})
        folder = store.create("compare", "demo")
        folder.figures_dir.mkdir()
        figures = [folder.figures_dir / f"{figure}.png" for figure in ("timeline", "unheard_of", "gone")]
        for figure in figures[:2]:
            figure.write_bytes(png())
        known = {
            "runs": members,
            "arms": [{"name": name, "runs": runs} for name, runs in arms.items()],
            "comparisons": comparisons,
            "pairs": [comparison(**pair) for pair in pairs],
            "figures": figures,
        }
        write_json(folder.path / "comparison.json", {"question": None, "checks": [], **known, **record})
        return folder

    return make


@pytest.fixture
def reported(store: RunStore, make_comparison: MakeComparison) -> Reported:
    """Makes such a comparison, and gives what a report reads of it."""

    def read(*changes: Json, **given: Any) -> ReportInput:
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


@pytest.fixture
def start(store: RunStore, tmp_path: Path) -> Start:
    """Registers a comparison of the recipe of `fake_training`, in which texts may be replaced."""

    def started(changes: Mapping[str, str] = NOTHING) -> Run:
        path, text = tmp_path / "demo.yaml", RECIPE
        for old, new in changes.items():
            text = text.replace(old, new)
        path.write_text(text)
        return compare.start_comparison(load_recipe(path), store, name="demo")

    return started
