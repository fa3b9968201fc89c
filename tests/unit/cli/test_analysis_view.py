"""What `analyze` prints of comparisons: few arms beside each other, many an arm a row, and a line per verdict."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable

import pytest
from unit.analysis.conftest import Fake, build_run
from unit.cli.conftest import Cli

from dynbench.analysis import analyze
from dynbench.cli import console
from dynbench.cli.analyze import _tells_apart
from dynbench.runs.store import RunStore
from dynbench.table_text import Table

VIRTUAL = ("launch.launcher=virtual", "launch.world_size=2", "launch.comm_model=none")
Show = Callable[..., list[str]]


@pytest.fixture
def show(store: RunStore, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Show:
    """`show(*words)`: stdout of `analyze` on a terminal of 100 columns, in lines; no figures are drawn."""
    monkeypatch.setattr(analyze, "draw_figures", lambda *_, **__: [])

    def call(*words: str) -> list[str]:
        terminal = console._Console(width=100, force_terminal=True, color_system=None)
        monkeypatch.setattr(console, "stdout", terminal)
        return cli("analyze", *words).lines

    return call


def launches(store: RunStore, **fake: object) -> list[str]:
    """Ids of two launches of one arm."""
    return [build_run(store, Fake(seed=seed, steps=10, warmup_steps=2, **fake)).id for seed in (0, 1)]  # type: ignore[arg-type]  # typed by Fake


def arms(store: RunStore) -> list[str]:
    """Launches of `static`, then of four candidates."""
    found = launches(store)
    for share in (0.1, 0.2, 0.3, 0.4):
        over = ("schedule.cost_type=attention", f"schedule.attention_a={share}")
        found += launches(store, policy="partition", overrides=over)
    return found


@pytest.mark.slow
def test_the_forms_of_many_arms(store, show):
    named = arms(store)
    lines, whole = show(*named, "-q"), show(*named)
    assert lines == [line for line in whole if re.match(r"[A-Z]{4,} +\S", line)]
    number, ends = r"\d\.\d{3}", r"\[\d\.\d{3}, \d\.\d{3}\]"
    verdict = rf"[A-Z]+ +\S.* {number}x static {ends}, level step, 2 launches"
    assert len(lines) == 4 and all(re.fullmatch(verdict, line) for line in lines) and max(map(len, lines)) <= 100

    page = (store.resolve("@latest:analyze").path / "summary.md").read_text(encoding="utf-8")
    assert [block for block in "\n".join(show(*named, "--format", "md")).split("\n\n") if block not in page] == []

    first, *_ = csv.DictReader(show(*named, "--format", "csv"))
    labels = [name for name in first if name not in ("metric", "title", "unit") and not name.endswith("_percent")]
    assert len(labels) == 5 and first["metric"] == "step_time_ms.mean"


@pytest.mark.slow
def test_a_line_says_what_its_number_rests_on(store, show):
    static, other = launches(store), launches(store, policy="partition", fingerprint="data-2")
    (line,) = show(*static, *other, "--force", "-q")
    assert line.startswith("INCOMPARABLE  partition ") and line.endswith(", differs in env.data.fingerprint")

    (line,) = show(*launches(store, overrides=VIRTUAL), *launches(store, policy="partition", overrides=VIRTUAL), "-q")
    assert line.endswith(", 2 launches, virtual ranks")


def test_tables_in_which_no_arm_differs_are_left_out():
    def shown(*rows: list[str]) -> bool:
        return _tells_apart(Table(["arm", "ms", "MB"], rows))

    assert shown(["a", "1", ""], ["b", "2", ""]) and shown(["a", "", ""])
    assert not shown(["a", "1", ""], ["b", "1", ""])
