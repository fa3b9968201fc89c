"""`dynbench data`: what can be taken out of a data set, to be shared or to train on elsewhere."""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, print_lines, print_table, refuse_existing, writing
from dynbench.cli.options import ANY_PATH, FILE_PATH, Duration, Option, command
from dynbench.errors import UsageError
from dynbench.runs.atomic import write_bytes
from dynbench.units import format_bytes

if TYPE_CHECKING:
    from dynbench.schedule.plan import IntArray
    from dynbench.schedule.traces import Trace

DATASET_KEYS = (
    *("dataset", "data_path", "text_column", "label_column", "length_column"),
    *("tokenizer", "model", "max_length", "subset"),
)


def _output_options(default: str, text: str) -> tuple[Option, ...]:
    """`-o --force`; the callback receives `output` and `force`."""
    return (
        Option(
            ["-o", "--output"], group="Options", type=FILE_PATH, default=Path(default), show_default=True, help=text
        ),
        Option(["--force"], group="Options", is_flag=True, help="Overwrite the file."),
    )


@click.group()
def data() -> None:
    """Take out of a data set what can be shared, or trained on elsewhere."""


@command(
    "lengths",
    group=data,
    short_help="The lengths of the training samples, and nothing else.",
    options=_output_options("lengths.parquet", "File to write: .parquet, .csv, .jsonl, .txt or .npy."),
    config=(*(f"workload.{key}" for key in DATASET_KEYS), "train.seed"),
    epilog="\b\nExamples:\n  dynbench data lengths runA -o lengths.parquet\n"
    "  dynbench data lengths --dataset tsv --data-path train.tsv --tokenizer vocab.txt --max-length 512",
)
@click.argument("run", required=False)
def export_lengths(settings: Settings, run: str | None, output: Path, force: bool) -> None:
    """Write the lengths that are trained on, in tokens and in the order of the data, to a file.

    They are those of RUN, or of --dataset: cut to --max-length, without held-out samples, the subset drawn. The order
    stays, because batches depend on it: `train --dataset lengths` plans the same steps from the file.
    """
    from dynbench.lengths import trace_suffix
    from dynbench.schedule.traces import describe

    trace_suffix(output)
    refuse_existing(output, force)
    trace, max_length = _trace(settings, run)
    save_lengths(trace.lengths, output)
    found = describe(trace.lengths)
    facts = {"path": output, "source": trace.source, "max_length": max_length, "lengths": found}
    if not settings.printed(facts, str(output)):
        path = shlex.quote(str(output))
        print_lines(
            str(output),
            f"{found.samples:,} lengths in the order of the data ({trace.source}): mean {found.mean:.1f}, "
            f"p50 {found.p50:g}, max {found.max} tokens, cut to {max_length}; no text, no token, no label",
            f"next  dynbench train --dataset lengths --data-path {path} --max-length {max_length}",
        )


@command(
    "wikipedia",
    group=data,
    short_help="Articles of Wikipedia, as a file for --dataset json.",
    options=_output_options("wikipedia.json", "File to write."),
    epilog="\b\nExamples:\n  dynbench data wikipedia -o articles.json --megabytes 10\n"
    "  dynbench train --workload causal_lm --dataset json --data-path articles.json",
)
@click.option(
    "--megabytes", type=click.FloatRange(min=0, min_open=True), default=10, show_default=True, help="Size of the file."
)
@click.option("--edition", default="20231101.en", show_default=True, help="Date and language, as the hub names them.")
def export_wikipedia(settings: Settings, output: Path, force: bool, megabytes: float, edition: str) -> None:
    """Write the first articles of wikimedia/wikipedia on the hub to a JSON array of {"id", "title", "text"}."""
    from dynbench.plugins.datasets import WIKIPEDIA, WikipediaOptions
    from dynbench.workloads.datasets.from_hub import export

    refuse_existing(output, force)
    with writing(output):
        articles, size = export(output, WikipediaOptions(megabytes=megabytes, edition=edition))
    facts = {"path": output, "source": f"hub:{WIKIPEDIA} {edition}", "articles": articles, "bytes": size}
    if not settings.printed(facts, str(output)):
        print_lines(
            str(output),
            f"{articles:,} articles of {WIKIPEDIA} {edition}, {size:,} bytes",
            f"next  dynbench train --workload causal_lm --dataset json --data-path {shlex.quote(str(output))}",
        )


@command(
    "cache",
    group=data,
    short_help="What the cache of tokenised data holds; removes what is old.",
    epilog="\b\nExamples:\n  dynbench data cache\n  dynbench data cache --older-than 4w --remove",
)
@click.option("--older-than", type=Duration(), metavar="AGE", help="Only what was used so long ago, like 30d or 4w.")
@click.option("--remove", is_flag=True, help="Remove it; what is needed again is made again.")
@click.option(
    "--folder", type=ANY_PATH, help="The cache; else $DYNBENCH_CACHE, else dynbench's part of the user's cache folder."
)
def show_cache(settings: Settings, older_than: float | None, remove: bool, folder: Path | None) -> None:
    """Say what tokenised data, lengths and articles are kept, how large they are and when they were last used."""
    from dynbench.config.schema import Workload
    from dynbench.workloads.cache import cache_entries, cache_folder

    place = cache_folder(Workload(cache_dir=None if folder is None else str(folder)))
    now = time.time()
    entries = [entry for entry in cache_entries(place) if now - entry.used >= (older_than or 0)]
    for entry in entries if remove else ():
        with writing(entry.path, "Remove it by hand."):
            entry.remove()
    records = [
        {"name": entry.path.name, "bytes": entry.size, "used": datetime.fromtimestamp(entry.used, UTC).isoformat()}
        for entry in entries
    ]
    total = sum(entry.size for entry in entries)
    facts = {"folder": place, "removed": remove, "bytes": total, "entries": records}
    if settings.printed(facts, [str(entry.path) for entry in entries]):
        return
    if entries:
        ages = [(entry.path.name, format_bytes(entry.size), f"{(now - entry.used) / 86_400:.1f}") for entry in entries]
        print_table(("kept", "size", "last used, days ago"), ages)
    print_lines(f"{'removed ' if remove else ''}{format_bytes(total)} in {place}")


def save_lengths(lengths: IntArray, path: Path) -> None:
    """Write lengths as the file's suffix says, all or nothing.

    Raises:
        DataError: unknown suffix.
        UsageError: the file cannot be written.
    """
    from dynbench.lengths import encode_trace

    content = encode_trace(lengths, path)
    with writing(path):
        write_bytes(path, content)


def _trace(settings: Settings, run: str | None) -> tuple[Trace, int]:
    """The lengths of a run, or of the data set that is configured, and the `max_length` that cut them.

    Raises:
        UsageError: a run, and settings of data beside it.
    """
    from dynbench.experiment.trace_sources import run_trace, training_trace

    if run is None:
        config = settings.config(trains=False)
        return training_trace(config), config.workload.max_length
    if settings.configures:
        raise UsageError(
            f"data lengths {run}: a run, and settings beside it",
            "Name a run, which has its own, or a data set.",
        )
    found = settings.store().resolve(run)
    return run_trace(found), found.config().workload.max_length
