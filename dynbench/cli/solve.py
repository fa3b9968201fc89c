"""`dynbench solve`: policies on length traces, offline."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynbench.cli.common import Columns, Settings, print_records, writing
from dynbench.cli.options import FILE_PATH, command
from dynbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from dynbench.config.schema import Config
    from dynbench.experiment.solve_run import Solution
    from dynbench.schedule.traces import Trace

DATASETS = ("embedded",)
"""Data sets of `train` that need no file, by name; sst2 is the histogram here and --dataset sst2 the text itself."""
DATASET_KEYS = ("name", "dataset", "data_path", "text_column", "label_column", "length_column", "tokenizer", "subset")
SCHEDULE_KEYS = ("cost_type", "second_weight", "solver", "buffer", "micro_batches", "objective", "capacity", "speeds")
DEFAULT_WORLD_SIZES = (4, 8, 32)
EPILOG = """\b
Examples:
  dynbench solve
  dynbench solve lengths.parquet --world-size 4,8,64 --batch-per-rank 8 --policy all
  dynbench solve sst2 --world-size 8 --global-batch 64 --policy partition,window --window 4,8
"""


def _whole_numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """`4,8,64` as numbers, each at least 1."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not a whole number of at least 1.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _names(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...] | None:
    """`a,b` as names; `all` as None."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    return None if not names or "all" in names else names


@command(
    named=True,
    table=True,
    config=(
        *(f"workload.{key}" for key in (*DATASET_KEYS, "layout")),
        *(f"schedule.{key}" for key in SCHEDULE_KEYS),
        *("train.seed", "probe.run"),
    ),
    epilog=EPILOG,
)
@click.argument("traces", nargs=-1, metavar="[TRACE ...]")
@click.option("--world-size", "world_sizes", callback=_whole_numbers, metavar="N,N", help="Ranks [4,8,32].")
@click.option("--batch-per-rank", type=click.IntRange(1), default=8, show_default=True, help="Samples per rank.")
@click.option("--global-batch", type=click.IntRange(1), help="Samples per step over all ranks, instead.")
@click.option(
    "--policy", "policies", callback=_names, default="all", metavar="all|NAME,NAME", help="Of --list, or packed [all]."
)
@click.option(
    "--window", "windows", callback=_whole_numbers, metavar="N,N", help="W of policy `window`, which it adds [8]."
)
@click.option("--steps", type=click.IntRange(1), help="Steps per line, in whole windows [100, less where slow].")
@click.option("--order", type=click.Choice(["shuffle", "file"]), default="shuffle", show_default=True)
@click.option("--max-length", type=click.IntRange(1), help="Cut samples to this many tokens [no cut], as train does.")
@click.option("--column", help="Column of the trace file [length, or the only one].")
@click.option("--second-column", help="Column with a second number per sample, whose cost is added [none].")
@click.option("--from-run", metavar="RUN", help="Plan the data of a training run.")
@click.option("--list", "list_only", is_flag=True, help="List the policies and stop.")
@click.option("--csv", "csv_path", type=FILE_PATH, help="Write the lines here too.")
@click.option("--write-trace", type=FILE_PATH, help="Write the lengths here too.")
@click.option("--no-figures", is_flag=True, help="Leave the figures out.")
def solve(
    settings: Settings,
    traces: Sequence[str],
    world_sizes: tuple[int, ...] | None,
    policies: tuple[str, ...] | None,
    windows: tuple[int, ...] | None,
    max_length: int | None,
    column: str | None,
    second_column: str | None,
    from_run: str | None,
    list_only: bool,
    csv_path: Path | None,
    write_trace: Path | None,
    no_figures: bool,
    **sizes: Any,
) -> None:
    """Plan length traces offline: what static scheduling wastes, what each policy gives back, and the bound.

    TRACE is a parquet, CSV, JSONL or .npy file with one length per sample, - for standard input, or sst2, gsm8k or
    lognormal; without any, these three. `embedded`, or --dataset with its flags, plans a data set as `train` would
    load it.
    """
    if list_only:
        _list_policies(settings)
        return
    from dynbench.config.unread import Use, unread
    from dynbench.experiment.solve_run import SolveOptions, flat, run_solve, write_csv
    from dynbench.plugins import POLICIES
    from dynbench.plugins.policies import plan_of
    from dynbench.schedule.solve import DEFAULT_WINDOW

    config = settings.config(trains=False)
    if windows is None and "window" in config.schedule.model_fields_set:
        windows = (config.schedule.window_size,)
    if max_length is None and "max_length" in config.workload.model_fields_set:
        max_length = config.workload.max_length
    policies = _with_window(policies, windows)
    settings = _in_their_layout(settings, config, policies)
    config = settings.config(trains=False)
    loaded = _load(settings, traces, column, second_column, from_run, max_length)
    if write_trace is not None:
        _write_trace(loaded, write_trace)
    options = SolveOptions(
        traces=loaded,
        world_sizes=world_sizes or DEFAULT_WORLD_SIZES,
        policies=policies,
        windows=windows or (DEFAULT_WINDOW,),
        max_length=max_length,
        **sizes,  # --batch-per-rank, --global-batch, --steps, --order
    )
    from dynbench.cli.solve_view import PATIENCE_S, progress_on

    planned = tuple(plan_of(name)[0] for name in policies or POLICIES)
    warnings = unread("solve", [Use(config, config, policies=planned)])
    store = settings.store()
    with settings.working(after_s=PATIENCE_S, line_every_s=math.inf) as tell:
        update = progress_on(tell)
        solution = run_solve(config, options, store, on_outcome=update, warnings=warnings, **settings.naming)
    if csv_path is not None:
        with writing(f"--csv {csv_path}", "Name a writable folder."):
            write_csv(csv_path, [flat(line.result) for line in solution.lines])
    _show(settings, config, solution, draw=not no_figures)


def _in_their_layout(settings: Settings, config: Config, policies: Sequence[str] | None) -> Settings:
    """With rows of real tokens as the layout where every policy named has it: capacities then count tokens.

    Raises:
        UsageError: another layout is configured.
    """
    from dynbench.plugins.policies import named_plan, plan_of

    layouts = {plan_of(name)[1] for name in policies or ()}
    if len(layouts) != 1 or layouts == {"padded"}:
        return settings
    given = config.workload.layout if "layout" in config.workload.model_fields_set else None
    for name in policies or ():
        named_plan(name, given)
    return settings.with_flags(dict.fromkeys(["workload.layout"], *layouts))


def _load(
    settings: Settings,
    specs: Sequence[str],
    column: str | None,
    second_column: str | None,
    from_run: str | None,
    max_length: int | None,
) -> list[Trace]:
    """The traces named, each with a name of its own, cut to `max_length`."""
    from dynbench.schedule.traces import BUILT_IN, load_trace

    second: dict[str, object] = {} if second_column is None else {"workload.second_column": second_column}
    loaded = [
        _dataset(settings, {"workload.dataset": spec, **second})
        if spec in DATASETS
        else _standard_input(column, second_column)
        if spec == "-"
        else load_trace(spec, column, second_column)
        for spec in specs
    ]
    if _names_data(settings, specs, from_run) and not set(specs) & set(DATASETS):
        loaded.append(_dataset(settings, second))
    if from_run is not None:
        from dynbench.experiment.trace_sources import run_trace

        loaded.append(run_trace(settings.store().resolve(from_run)))
        if second and len(loaded) == 1:
            raise UsageError("--second-column: a run plans with its own", "Leave it out, or name a trace file.")
    if not loaded:
        loaded = [load_trace(name, None, second_column) for name in BUILT_IN]
    names = [trace.name for trace in loaded]
    for place, name in enumerate(names):
        if (count := names[: place + 1].count(name)) > 1:
            loaded[place] = replace(loaded[place], name=f"{name}#{count}")
    return [trace.cut(max_length) for trace in loaded]


def _standard_input(column: str | None, second_column: str | None) -> Trace:
    """The trace that is piped in: JSONL, CSV, or a length a line."""
    from dynbench.schedule.traces import load_trace

    content = sys.stdin.buffer.read()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdin.jsonl" if content.lstrip().startswith(b"{") else "stdin.csv")
        path.write_bytes(content)
        try:
            return replace(load_trace(str(path), column, second_column), source="standard input", workload=None)
        except DataError as error:
            error.message = error.message.replace(str(path), "standard input")
            raise


def _names_data(settings: Settings, specs: Sequence[str], from_run: str | None) -> bool:
    """Whether a flag describes the data set to plan, or -c or --set names one and nothing else is named."""
    if settings.flags.keys() & {f"workload.{key}" for key in DATASET_KEYS}:
        return True
    return not specs and from_run is None and "dataset" in settings.config(trains=False).workload.model_fields_set


def _with_window(policies: tuple[str, ...] | None, windows: tuple[int, ...] | None) -> tuple[str, ...] | None:
    """The policies, with the one that plans windows where windows are given."""
    if policies is None or windows is None or max(windows) == 1 or "window" in policies:
        return policies
    return (*policies, "window")


def _dataset(settings: Settings, flags: Mapping[str, object]) -> Trace:
    """A data set as `train` would load it, not cut."""
    from dynbench.experiment.trace_sources import dataset_trace

    return dataset_trace(settings.with_flags(flags).config(paths=True, trains=False))


def _write_trace(traces: Sequence[Trace], path: Path) -> None:
    from dynbench.cli.data import save_lengths

    if len(traces) != 1:
        raise UsageError(f"--write-trace {path}: {len(traces)} traces for one file", "Name a single trace.")
    if traces[0].second is not None:
        raise UsageError(f"--write-trace {path}: it holds lengths alone", "Leave out --second-column.")
    save_lengths(traces[0].lengths, path)


def _show(settings: Settings, config: Config, solution: Solution, draw: bool) -> None:
    from dynbench.cli.solve_view import next_lines, print_solution

    figures: list[Path] = []
    if draw:
        from dynbench.analysis.figures import draw_figures
        from dynbench.runs.recorder import named

        with named(solution.run):
            figures = draw_figures("solve", solution.run, solution.run.figures_dir)
    facts = {
        "run": solution.run.reference,
        "results": [line.result for line in solution.lines],
        "skipped": solution.skipped,
        "figures": figures,
    }
    if not settings.printed(facts, str(solution.run.path)):
        print_solution(solution, figures, next_lines(solution, config, settings))


def _list_policies(settings: Settings) -> None:
    from dynbench.plugins import POLICIES

    keys = ("summary", "layouts", "in_train", "missing")
    policies = [{"name": name, **{key: getattr(entry, key) for key in keys}} for name, entry in POLICIES.items()]
    columns: Columns = {
        "policy": "name",
        "what it does": "summary",
        "layouts": lambda row: ", ".join(row["layouts"]),
        "runs in": lambda row: "train, solve" if row["in_train"] else "solve",
        "": "missing",
    }
    if not settings.printed({"policies": policies}, POLICIES):
        print_records(columns, policies)
