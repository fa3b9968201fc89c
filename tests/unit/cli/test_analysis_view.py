"""What `analyze` prints of comparisons: few arms beside each other, many an arm a row, and a line per verdict."""

from __future__ import annotations

import csv
import io
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

COSTS = ("tokens", "tokens_sq", "attention")
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


def launches(store: RunStore, count: int = 2, **fake: object) -> list[str]:
    """Ids of launches of one arm, of as many seeds."""
    return [build_run(store, Fake(seed=seed, steps=10, warmup_steps=2, **fake)).id for seed in range(count)]  # type: ignore[arg-type]  # typed by Fake


def arms(store: RunStore, count: int) -> list[str]:
    """Launches of `static`, then of as many candidates as make up the count."""
    found = launches(store)
    for index in range(count - 1):
        over = (f"schedule.cost_type={COSTS[index % 3]}", f"schedule.attention_a={0.1 + 0.1 * (index // 3)}")
        found += launches(store, policy="partition", overrides=over)
    return found


@pytest.mark.slow
def test_quiet_says_what_the_whole_says_of_each_verdict(store, show):
    named = arms(store, 4)
    lines, whole = show(*named, "-q"), show(*named)
    assert lines == [line for line in whole if re.match(r"[A-Z]{4,} +\S", line)]
    number, ends = r"\d\.\d{3}", r"\[\d\.\d{3}, \d\.\d{3}\]"
    verdict = rf"[A-Z]+ +\S.* {number}x static {ends}, level step, 2 launches"
    assert len(lines) == 3 and all(re.fullmatch(verdict, line) for line in lines)
    told = [line for line in whole if line.startswith(("(1.5x", "(95 %", "(bound"))]
    assert len(told) == 3 and max(map(len, lines + told)) <= 100


@pytest.mark.slow
def test_a_line_says_what_its_number_rests_on(store, show):
    def one(*words: str) -> str:
        (line,) = show(*words, "-q")
        return line

    static, other = launches(store), launches(store, policy="partition", fingerprint="data-2")
    line = one(*static, *other, "--force")
    assert line.startswith("INCOMPARABLE  partition ") and line.endswith(", differs in env.data.fingerprint")

    virtual = [*launches(store, overrides=VIRTUAL), *launches(store, policy="partition", overrides=VIRTUAL)]
    assert one(*virtual).endswith(", 2 launches, virtual ranks")


@pytest.mark.slow
def test_the_forms_of_many_arms(store, show):
    named = arms(store, 5)
    shown = "\n".join(show(*named, "--format", "md"))
    page = (store.resolve("@latest:analyze").path / "summary.md").read_text(encoding="utf-8")
    assert [block for block in shown.split("\n\n") if block not in page] == []

    rows = list(csv.DictReader(io.StringIO("\n".join(show(*named, "--format", "csv")))))
    labels = [name for name in rows[0] if name not in ("metric", "title", "unit") and not name.endswith("_percent")]
    assert len(labels) == 5 and rows[0]["metric"] == "step_time_ms.mean"


def test_tables_in_which_no_arm_differs_are_left_out():
    def shown(*rows: list[str]) -> bool:
        return _tells_apart(Table(["arm", "ms", "MB"], rows))

    assert shown(["a", "1", ""], ["b", "2", ""]) and shown(["a", "", ""])
    assert not shown(["a", "1", ""], ["b", "1", ""])
