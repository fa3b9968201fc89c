"""`dynbench eval`, `generate` and `tensorboard`: the models and the scalars that training left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, print_lines
from dynbench.cli.options import command
from dynbench.errors import Terminated, UsageError

if TYPE_CHECKING:
    from dynbench.runs.run import Run
    from dynbench.runs.store import RunStore

_log = logging.getLogger(__name__)


@command(
    config=(
        *("workload.dataset", "workload.data_path", "workload.eval_path", "workload.text_column", "workload.tokenizer"),
        *("workload.max_length", "launch.device"),
    ),
    epilog="\b\nExamples:\n  dynbench eval @latest\n  dynbench eval runA --max-length 512\n"
    "  dynbench eval FOLDER --dataset jsonl --data-path texts.jsonl",
)
@click.argument("source", metavar="RUN|FOLDER")
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True, help="Samples at a time.")
@click.option("--eval-samples", type=click.IntRange(min=1), help="Samples to draw. [all of a file named here]")
def evaluate(settings: Settings, source: str, batch_size: int, eval_samples: int | None) -> None:
    """Evaluate a saved model on the samples that training evaluates: the evaluation file, or those held out.

    Of a run it is the best model that --save-model kept, on the run's own data unless others are named. A file that
    is named is evaluated whole, each sample cut as in the run.
    """
    from dynbench.engine.rank.saved import evaluate_saved, find_saved

    saved = find_saved(settings.store(), source)
    if eval_samples is not None:
        settings = settings.with_flags({"train.eval_samples": eval_samples})
    found = evaluate_saved(saved.config(settings.overrides, settings.flags), batch_size)
    result = {"source": source, **found}
    metric = "perplexity" if "perplexity" in found else "accuracy"
    if not settings.printed(result, f"{found['loss']} {found[metric]}"):
        for key, value in result.items():
            if value is not None:
                print_lines(f"{key.replace('_', ' '):20}{f'{value:,.6g}' if isinstance(value, float) else value}")


@command(
    config=("workload.tokenizer", "launch.device"),
    epilog="\b\nExamples:\n  dynbench generate @latest --prompt 'Natalia sold' --length 60\n"
    "  dynbench generate FOLDER                     asks for prompts until the input ends",
)
@click.argument("source", metavar="RUN|FOLDER")
@click.option("--prompt", help="Text to go on with; asked for without.")
@click.option("--length", type=click.IntRange(min=1), default=100, show_default=True, help="Most tokens to write.")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="0 draws nothing.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Share of probability that is drawn from.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the draws.")
def generate(settings: Settings, source: str, prompt: str | None, seed: int, **how: float) -> None:
    """Go on with a prompt, as it is: a base model knows no dialogue, and no template is put around it."""
    from dynbench.engine.rank.saved import Writer, find_saved

    if prompt is None and settings.as_json:
        raise UsageError("--json without --prompt", "Name one: --prompt TEXT.")
    saved = find_saved(settings.store(), source)
    writer = Writer.of(saved.config(settings.overrides, settings.flags))
    go_on: Callable[..., tuple[str, int]] = partial(writer.go_on, **how)  # type: ignore[arg-type]  # as click read them
    if prompt is None:
        _converse(go_on, seed)
        return
    text, tokens = go_on(prompt, seed=seed)
    if not settings.printed({"source": source, "prompt": prompt, "text": text, "tokens": tokens, "seed": seed}, text):
        print_lines(prompt + text)


def _converse(go_on: Callable[..., tuple[str, int]], seed: int) -> None:
    """Ask for prompts until the input ends; every one is drawn with a seed of its own."""
    _log.info("the model goes on with each prompt as it is, without a template; end the input to stop")
    while True:
        try:
            prompt = click.prompt("prompt", prompt_suffix="> ", err=True)
        except click.Abort:
            return
        try:
            text, _ = go_on(prompt, seed=seed)
        except UsageError as error:
            _log.error("%s %s", error.message, error.hint)
            continue
        print_lines(prompt + text)
        seed += 1


@command(
    epilog="\b\nExamples:\n  dynbench tensorboard                         every run that has scalars\n"
    "  dynbench tensorboard runA runB --port 6010"
)
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="Port to listen on.  [default: 6006, or the next one that is free]"
)
@click.option("--host", default="localhost", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
def tensorboard(settings: Settings, runs: tuple[str, ...], port: int | None, host: str) -> None:
    """Show the scalars that `train --tensorboard` wrote, of some runs and comparisons or of all, until Ctrl-C."""
    found = scalars_of_runs(settings.store(), runs)
    address = serve(found, host, port)
    if not settings.printed({"address": address, "runs": list(found)}, address):
        print_lines(f"{address}  {len(found)} run{'s' * (len(found) != 1)}; Ctrl-C ends it")
    try:
        wait_for_ctrl_c()
    except Terminated:
        raise
    except KeyboardInterrupt:
        return


def scalars_of_runs(store: RunStore, references: Iterable[str]) -> dict[str, Path]:
    """Label to folder of scalars: of the runs named and the launches of the comparisons named, or of all.

    Raises:
        RunLookupError: a reference that is unknown.
        UsageError: runs that have none.
    """
    from dynbench.engine.rank.evaluation import SCALARS_FOLDER as FOLDER

    chosen = [run for reference in references for run in _launched(store, store.resolve(reference))]
    folders = {run.label: run.path / FOLDER for run in chosen or (run for run, _ in store.entries())}
    missing = [label for label, folder in folders.items() if not folder.is_dir()]
    if chosen and missing:
        raise UsageError(f"{', '.join(missing)}: no scalars for TensorBoard", "Train with --tensorboard.")
    if len(missing) == len(folders):
        raise UsageError(f"{store.root}: no run has scalars for TensorBoard", "Train with --tensorboard.")
    return {label: folder for label, folder in folders.items() if label not in missing}


def _launched(store: RunStore, run: Run) -> list[Run]:
    """A run, or what was launched for a comparison."""
    from dynbench.runs.store import groups_of, members_of

    if run.record().command != "compare":
        return [run]
    entries = store.entries()
    members = members_of(run.id, groups_of(entries))
    return [other for other, record in entries if other.id in members and record.command == "train"] or [run]


def serve(folders: Mapping[str, Path], host: str, port: int | None) -> str:
    """Start TensorBoard within this process; its address.

    Args:
        folders: label to folder.
        host: address to listen on.
        port: None is 6006, or the next one that is free.

    Raises:
        UsageError: it is not installed, cannot listen there, or would read a path as two.
    """
    for folder in folders.values():
        if "," in str(folder.resolve()):
            raise UsageError(
                f"{folder}: TensorBoard reads a comma as the end of a path",
                "Move the results and name them: --results.",
            )
    try:
        program = import_module("tensorboard.program")  # as an attribute it would be imported when first used
    except ImportError as error:
        reason = f"the package tensorboard cannot be imported: {error}"
        raise UsageError(reason, "pip install --upgrade tensorboard.") from error
    named = ",".join(f"{label}:{folder.resolve()}" for label, folder in folders.items())
    where = ("--host", host, *(() if port is None else ("--port", str(port))))
    board = program.TensorBoard()
    board.configure(argv=["tensorboard", "--logdir_spec", named, *where])
    try:
        return str(board.launch())
    except program.TensorBoardServerException as error:
        raise UsageError(f"TensorBoard cannot start: {error}", "Name another --port, or leave it out.") from error


def wait_for_ctrl_c() -> None:
    """Return never."""
    threading.Event().wait()
