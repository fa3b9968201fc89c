"""The whole list, measured stage by stage: every stage is a run of its own, and what is done is not done again.

The folder of the suite holds assignment.json: the stages with their runs, and the checked strategies' rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Unpack

from dynbench.analysis.figures import draw_figures
from dynbench.bench.base import Benchmark, Row
from dynbench.bench.bench_run import lacks_gpus, measure_bench, start_bench
from dynbench.bench.record import read_name, read_options, read_rows
from dynbench.config.layers import load_config, load_mapping
from dynbench.config.recipes import Recipe, find_recipe, resolve_cells
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import DynbenchError, Interrupted, RecordError, StorageError, UsageError
from dynbench.experiment.assignment.questions import CHECKED, render
from dynbench.experiment.assignment.rows import CHECK, Table, check_table, comparison_table
from dynbench.experiment.compare import run_comparison, start_comparison
from dynbench.experiment.report_input import read_report_input
from dynbench.experiment.report_values import linked
from dynbench.experiment.reporting import FORMATS, to_html
from dynbench.plugins import BENCHMARKS
from dynbench.report import LANGUAGES
from dynbench.runs.atomic import read_json, write_json, write_text
from dynbench.runs.recorder import new_run, recorded
from dynbench.runs.run import Run, RunId, Status, refuse_running
from dynbench.runs.store import Naming, RunStore, check_own_files

_log = logging.getLogger(__name__)
FILE = "assignment.json"
NAME = "assignment"
ORDER = ("accounting", "precision", "attention", "flash", "transformer", "memory", "optimizer", "nsys", "collectives")
"""The benchmarks that questions are answered from; one that this version does not have is left out."""
SMALL: Mapping[str, Sequence[str]] = {
    "attention": (
        *("lengths=256,1024,4096,8192", "memory_limit_mb=4000"),
        *("ways=plain,compiled,flash_torch", "iterations=5", "warmup=2"),
    ),
    "flash": ("ways=plain,sdpa,flash_torch,flash_compiled,flash_triton", "iterations=10"),
    "transformer": ("sizes=tiny,small", "execution=eager,compiled", "iterations=5"),
    "memory": ("sizes=tiny,small",),
    "collectives": ("operations=all_reduce", "sizes_mib=1,10,100,1000", "processes=2,4,6", "iterations=10"),
}
"""Options beside a benchmark's small ones: what two cores do in half an hour. Plain attention of 8,192 tokens is what
runs out of memory."""
RECIPES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "sync": (("ddp", "naive", "flat", "overlap", "bucketed", "zero1"), ("train.steps=16", "train.warmup_steps=4")),
    "buckets": (("mb1000", "mb100", "mb5"), ("train.steps=3", "train.warmup_steps=1", "train.profile_steps=0")),
}
"""Comparisons: their arms that questions are about, and settings that make them short."""
IN_TURNS: Mapping[str, object] = {"count": 1, "mode": "interleaved"}
Report = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """One part of the list.

    Attributes:
        name: of a benchmark, of a recipe, or `CHECK`.
        run: id of its run, once it began; the suite's own for `CHECK`.
        done: whether it ended well.
    """

    name: str
    run: RunId | None = None
    done: bool = False


@dataclass(frozen=True)
class State:
    """What `assignment.json` holds."""

    full: bool
    stages: list[Stage]
    checked: list[Row] = field(default_factory=list)

    def ended(self, name: str, run: str, *, done: bool) -> State:
        """With a stage begun or done."""
        return replace(self, stages=[Stage(name, run, done) if each.name == name else each for each in self.stages])


def holds_assignment(run: Run) -> bool:
    """Whether a folder is one of the suite."""
    return (run.path / FILE).is_file()


def read_state(run: Run) -> State:
    """The suite of a folder.

    Raises:
        RecordError: it holds none.
    """
    return read_json(run.path / FILE, State, "Only what dynbench bench assignment made is one.")


def start_suite(store: RunStore, *, full: bool, **naming: Unpack[Naming]) -> Run:
    """Register the suite; nothing is measured yet.

    Raises:
        UsageError: its benchmarks are to have their sizes for a GPU, and there is none; as `new_run`.
        RunLookupError: as `new_run`.
    """
    if full and this_machine().gpus == 0:
        raise UsageError(
            f"bench {NAME} --full has sizes for a GPU, and here are none",
            "Leave --full out: every question is answered small, and says what a GPU would run.",
        )
    resolved = resolve(load_config(None, (), {"launch.launcher": "torchrun"}), this_machine(), store)
    run = new_run(store, "bench", NAME, resolved.config, decisions=resolved.decisions, data={}, **naming)
    names = [*(name for name in ORDER if name in BENCHMARKS), CHECK, *RECIPES]
    write_json(run.path / FILE, State(full, [Stage(name) for name in names]))
    return run


def run_suite(run: Run, store: RunStore, report: Report, *, figures: bool = True) -> list[Path]:
    """Measure what is missing, and write the reports at whatever end; a stage that fails leaves the others be.

    Args:
        run: what `start_suite` made, also one that was interrupted.
        store: registry of the stages.
        report: called with how far it is, a line at a time.
        figures: whether those of benchmarks are drawn.

    Returns:
        The reports.

    Raises:
        RecordError: the suite's files cannot be read.
        UsageError: another process is at it.
        DynbenchError: the first stage that failed, once all others are done; or what interrupted it.
    """
    refuse_running(run)
    failures: list[DynbenchError] = []
    with recorded(run):
        try:
            stages = read_state(run).stages
            for index, stage in enumerate(stages, start=1):
                if stage.done and (stage.name == CHECK or _begun(stage, store) is not None):
                    continue
                head = f"part {index} of {len(stages)}, {stage.name}"
                report(head)
                try:
                    _run_stage(run, stage, store.within(run), _headed(report, head), figures)
                except (Interrupted, StorageError):
                    raise
                except DynbenchError as error:
                    _log.warning("%s: %s", stage.name, error.message)
                    failures.append(error)
        finally:
            paths = write_chapter(run, store)
        if failures:
            raise failures[0]
    return paths


def _headed(report: Report, head: str) -> Report:
    return lambda line: report(f"{head}: {line}")


def _run_stage(suite: Run, stage: Stage, store: RunStore, report: Report, figures: bool) -> None:
    state = read_state(suite)
    if stage.name == CHECK:
        from dynbench.engine.rank.toy_check import check_strategies

        with closing(check_strategies(CHECKED, 2)) as checking:
            table = check_table(suite, list(checking))
        state, run = replace(state, checked=list(table.rows)), suite
    elif stage.name in RECIPES:
        run = _begun(stage, store) or start_comparison(_short(stage.name), store)
        write_json(suite.path / FILE, state.ended(stage.name, run.id, done=False))
        run_comparison(run, store, on_stage=report)
    else:
        run = _begun(stage, store) or start_bench(stage.name, _benchmark(stage.name, state.full), store)
        write_json(suite.path / FILE, state.ended(stage.name, run.id, done=False))
        measure_bench(run, report=report)
        if figures:
            draw_figures("bench", run, run.figures_dir)
    write_json(suite.path / FILE, state.ended(stage.name, run.id, done=True))


def _benchmark(name: str, full: bool) -> Benchmark:
    """With the sizes for a GPU under --full where there are enough GPUs; else small."""
    entry = BENCHMARKS.find(name)
    load = entry.load()
    large: Benchmark = load(read_options(name, entry.full))
    small: Benchmark = load(read_options(name, SMALL.get(name, ())))
    return large if full and not lacks_gpus(large) else small


def _begun(stage: Stage, store: RunStore) -> Run | None:
    """The run that goes on; None where it has none, or that was removed.

    Raises:
        RecordError: something in its folder leads elsewhere.
    """
    run = None if stage.run is None else Run(store.root / stage.run)
    if run is None or not run.record_file.is_file():
        return None
    check_own_files(run.path)
    return run


def _short(name: str) -> Recipe:
    """A recipe with the arms that questions are about, one launch of each, and few steps."""
    arms, settings = RECIPES[name]
    recipe = resolve_cells(name, load_mapping(find_recipe(name)), settings, launches=IN_TURNS)[0]
    return replace(recipe, arms={each: recipe.arms[each] for each in arms})


def tables_of(run: Run, store: RunStore) -> Iterator[Table]:
    """What the stages measured, those that did not end among them; a run that was removed or not analyzed has none.

    One that cannot be read has none either, with a warning.
    """
    state = read_state(run)
    for stage in state.stages:
        own = _begun(stage, store)
        try:
            if stage.name == CHECK:
                yield Table(CHECK, run.id, state.checked)
            elif own is not None and stage.name not in RECIPES:
                yield Table(read_name(own), own.id, read_rows(own))
            elif own is not None and stage.done and own.status is Status.COMPLETED:
                yield replace(comparison_table(read_report_input(store, own)), source=stage.name)
        except RecordError as error:
            _warn_once(
                f"{stage.name}: {error.message}; taken for not measured. To measure it anew: dynbench runs rm "
                f"{stage.run}, then dynbench bench --resume {run.label}"
            )


@cache
def _warn_once(text: str) -> None:
    """Every form of a document reads the stages again."""
    _log.warning(text)


def chapter_text(run: Run, store: RunStore, language: str, form: str, folder: Path | None = None) -> str:
    """The document of a suite.

    Args:
        run: the suite's.
        store: registry of its stages.
        language: `en` or `zh`.
        form: `md`, or `html` for one self-contained page.
        folder: where the document will lie, which figures are linked from; the suite's by default.
    """
    where = run.path if folder is None else folder
    runs = (own for stage in read_state(run).stages if stage.name != CHECK if (own := _begun(stage, store)))
    drawn = ((own.id, path) for own in runs for path in sorted(own.figures_dir.glob("*.png")))
    pictures = {(own, path.stem): linked(path, where) for own, path in drawn}
    markdown = render(tables_of(run, store), run.label, language, pictures)
    return markdown if form == "md" else to_html(markdown, where, language)


def write_chapter(run: Run, store: RunStore) -> list[Path]:
    """The document in every language and form, beside the suite's file."""
    paths = {run.path / f"report.{language}.{form}": (language, form) for language, form in product(LANGUAGES, FORMATS)}
    for path, (language, form) in paths.items():
        write_text(path, chapter_text(run, store, language, form))
    return list(paths)
