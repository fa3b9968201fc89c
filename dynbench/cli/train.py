"""`dynbench train`: one run, static or dynamic, with every step of every rank measured."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Unpack

import click

from dynbench.cli.next_command import next_command, setting_words
from dynbench.cli.options import Settings, common_options, config_options, name_options
from dynbench.cli.output import print_for_script, print_line, print_lines, print_table, printed_json, show_warnings
from dynbench.errors import RecordError

if TYPE_CHECKING:
    from dynbench.config.schema import Config
    from dynbench.engine.launching.run_launch import LaunchPlan
    from dynbench.experiment.training import TrainingResult
    from dynbench.runs.run import Run
    from dynbench.runs.store import Naming, RunStore

_SECTIONS = ("workload", "schedule", "sync", "compress", "train", "launch", "probe.run")


@click.command(
    epilog="\b\nExamples:\n  dynbench train --mode static --name runA\n  dynbench train --mode dynamic --name runB\n"
    "  dynbench train --mode dynamic --dataset tsv --data-path train.tsv --tokenizer vocab.txt --nproc 2\n"
    "  torchrun --nproc-per-node 2 -m dynbench train --mode static"
)
@name_options
@click.option("--dry-run", is_flag=True, help="Print settings, torchrun line and run folder; do nothing.")
@click.option("--save-model", is_flag=True, help="Keep the best and the last model, with the tokenizer, in the run.")
@click.option("--tensorboard", is_flag=True, help="Write scalars too; `dynbench tensorboard` shows them.")
@click.option(
    "--exposed", is_flag=True, help="Train in turns with the same without communication, which tells what that costs."
)
@click.option("--no-figures", is_flag=True, help="Leave the figures out.")
@config_options(*_SECTIONS)
@common_options
def command(
    settings: Settings,
    dry_run: bool,
    no_figures: bool,
    save_model: bool,
    tensorboard: bool,
    exposed: bool,
    **naming: Unpack[Naming],
) -> None:
    """Train a model on several ranks and record where every step's time goes."""
    flags = {"train.save_model": save_model, "train.tensorboard": tensorboard, "train.exposed": exposed}
    for key, given in flags.items():
        if given:
            settings = settings.with_flag(key, True)
    config, store = settings.config(paths=True), settings.store()
    if dry_run:
        from dynbench.engine.launching.run_launch import plan_launch

        if config.train.exposed:
            from dynbench.experiment.training import one_with_silent

            (_, (silent, beside)), _ = one_with_silent(config, naming, store)
            plan_launch(silent, store, **beside)  # what cannot work of the one beside it
        _show_plan(plan_launch(config, store, asked=config, **naming), settings)
        return

    from dynbench.cli.console import progress_display
    from dynbench.experiment.training import run_training

    with progress_display(settings.shows_progress) as on_progress:
        result = run_training(config, store, on_progress=on_progress, figures=not no_figures, **naming)
    if result is not None:
        _show_result(result, store, settings)


def _show_plan(plan: LaunchPlan, settings: Settings) -> None:
    from dynbench.config.digest import dump_config

    show_warnings(plan.warnings)
    config = plan.resolved.config
    environment = [f"{key}={value}" for key, value in plan.environment.items()]
    facts = {
        "dry_run": True,
        "config": config.model_dump(mode="json"),
        "decisions": plan.resolved.decisions,
        "torchrun": list(plan.command),
        "environment": plan.environment,
        "run_path": plan.run_path,
        "warnings": plan.warnings,
    }
    if printed_json(settings, "train", facts):
        return
    decided = (f"# {key}: {it['value']} ({it['reason']})" for key, it in plan.resolved.decisions.items())
    print_lines(dump_config(config).rstrip(), *decided)
    torchrun = f"torchrun  {' '.join(environment)} {shlex.join(plan.command)}"
    print_lines("", torchrun, f"run       {plan.run_path}")


SHARED = " Oversubscribed: there are more computing threads than cores, so that ranks wait for a core too."


def _show_result(result: TrainingResult, store: RunStore, settings: Settings) -> None:
    from dynbench.analysis.run_facts import read_data
    from dynbench.analysis.summary import LEGEND
    from dynbench.analysis.tables import metric_tables

    run, summary, silent = result.run, result.summary, result.silent
    figures = [path for path in result.figures if path.suffix == ".png"]
    facts: dict[str, object] = {"run": run.reference, "summary": summary, "figures": figures}
    if silent is not None:
        facts["silent"] = {"id": silent.run.id, "name": silent.run.name, "path": silent.run.path}
    if print_for_script(settings, "train", facts, str(run.path)):
        return
    if summary is not None:
        beside = {} if silent is None or silent.summary is None else {silent.run.label: silent.summary}
        for table in metric_tables({run.label: summary, **beside}, {}):
            print_table(table.columns, table.rows)
        print_line(f"\n{LEGEND}{_origin_note(run)}{SHARED if summary['oversubscribed'] else ''}\n")
        about = read_data(run.env(), run.config().workload.max_length).lines()
        print_lines(*(f"{word:<9}{sentence}" for word, sentence in about))
    print_line(f"run      {run.path}")
    if silent is not None:
        print_line(f"beside   {silent.run.path}  (without communication)")
    if figures:
        print_line(f"figures  {len(figures)} in {run.figures_dir}")
    if run.config().train.tensorboard:
        print_line(f"scalars  {next_command('tensorboard', run.label, root=store.root)}")
    print_line(f"next     {analysis_command(run, store)}")


def _origin_note(run: Run) -> str:
    """What a number of virtual ranks, or of an emulated link, rests on; empty for real ones."""
    if (gbps := run.config().launch.link_gbps) is not None:
        from dynbench.analysis.summary import emulated_note

        return f" {emulated_note([gbps])}"
    if run.config().launch.launcher != "virtual":
        return ""
    decisions = run.env()["decisions"]
    assert isinstance(decisions, dict)
    return f" Virtual ranks, one device; communication model: {decisions['launch.comm_model']['value']}."


def analysis_command(run: Run, store: RunStore) -> str:
    """The analysis of a run as it was asked for, against the latest run that has other scheduling only, or alone."""
    from dynbench.config.schema import Analysis

    config = run.config()
    labels = [each.label for each in _compared(run, config, store)]
    settings = [] if config.analysis == Analysis() else setting_words("analyze", run, {})
    return next_command("analyze", *labels, *settings, root=store.root)


def _compared(run: Run, config: Config, store: RunStore) -> tuple[Run, ...]:
    """The run and the one to compare it with, static first."""
    from dynbench.config.digest import differences

    for other, record in reversed(store.entries()):
        if record.command != "train" or record.status != "completed" or other.id == run.id:
            continue
        try:
            differing = differences(config, other.config())
        except RecordError:  # a broken run of another day is no reason to fail this one
            continue
        if "schedule.mode" in differing and all(key.startswith("schedule.") for key in differing):
            return (run, other) if config.schedule.mode == "static" else (other, run)
    return (run,)
