"""Data sets of the Hugging Face hub, or its cache.

GLUE SST-2 (Socher et al., EMNLP 2013; Wang et al., ICLR 2019), and articles of Wikipedia, as many as are asked for,
cached as the JSON array that the data set `json` reads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import snapshot_download

from dynbench.config.schema import Workload
from dynbench.errors import DataError, HubError, first_line
from dynbench.plugins import options_of
from dynbench.plugins.datasets import GLUE, WIKIPEDIA, WikipediaOptions
from dynbench.runs.atomic import locked, replacing
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.cache import Progress, cache_folder
from dynbench.workloads.datasets.base import Splits, TextSplit
from dynbench.workloads.datasets.text_files import KEYS, stream_file
from dynbench.workloads.hub import LOAD_ERRORS, load_from_hub, quiet_libraries

SUBSET = "sst2"
PROBE_FILE = f"{SUBSET}/train-00000-of-00001.parquet"
GLUE_HINT = "Use a local copy (--dataset tsv --data-path FILE or --dataset jsonl) or --dataset embedded."


def load_sst2(settings: Workload) -> Splits:
    """67,349 training and 872 validation sentences.

    Raises:
        HubError: neither cached nor reachable.
        DataError: the repository does not hold what it should.
    """
    folder = load_from_hub("workload.dataset", GLUE, _snapshot, GLUE_HINT, probe_file=PROBE_FILE, repo_type="dataset")
    return Splits(_read_split(folder, "train"), _read_split(folder, "validation"))


def _snapshot(local_only: bool) -> Path:
    """The folder of the Parquet files in the hub's cache, downloaded unless `local_only`.

    Raises:
        FileNotFoundError: a split is missing.
    """
    root = snapshot_download(GLUE, repo_type="dataset", allow_patterns=[f"{SUBSET}/*"], local_files_only=local_only)
    folder = Path(root) / SUBSET
    for split in ("train", "validation"):
        if not any(folder.glob(f"{split}-*.parquet")):
            raise FileNotFoundError(f"no {split} file in {folder}")
    return folder


def _read_split(folder: Path, split: str) -> TextSplit:
    import polars as pl

    files = sorted(folder.glob(f"{split}-*.parquet"))
    try:
        rows = pl.read_parquet(files, columns=["sentence", "label"], glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = first_line(error)
        raise DataError(f"{files[0]}: expected Parquet with columns sentence and label: {reason}", GLUE_HINT) from error
    labels = rows["label"].to_numpy().astype(np.int64)
    return TextSplit(rows["sentence"].to_list(), labels, f"hub:{GLUE}/{SUBSET}, {split}")


KEY = "workload.dataset"
WIKIPEDIA_HINT = (
    "Where there is a network, dynbench data wikipedia -o FILE writes the articles to a file; here, "
    "--dataset json --data-path FILE reads it."
)


def load_wikipedia(settings: Workload) -> Splits:
    """The articles, fetched into the folder of `workload.cache_dir` where they are not there.

    Raises:
        HubError: they are not there, and the hub cannot be reached.
        DataError: an edition without articles, or a cache that cannot be written.
    """
    options, folder = options_of(settings, WikipediaOptions), cache_folder(settings)
    path = folder / f"wikipedia-{options.edition}-{options.megabytes:g}MB.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                export(path, options)
    except OSError as error:
        raise DataError(
            f"workload.cache_dir: {error.filename or folder}: {error.strerror or error}; articles cannot be kept there",
            "Name a writable folder in workload.cache_dir.",
        ) from error
    return Splits(stream_file(path, KEY, settings, "json"))


def export(path: Path, options: WikipediaOptions) -> tuple[int, int]:
    """Write the first articles of an edition to a file, all or nothing.

    Args:
        path: the file.
        options: the edition, and how much of it.

    Returns:
        How many articles, and bytes.

    Raises:
        HubError: the hub cannot be reached, or is lost on the way.
        DataError: there are no articles.
        OSError: the file cannot be written.
    """
    wanted = round(options.megabytes * BYTES_PER_MB)
    progress = Progress(f"fetching {WIKIPEDIA} {options.edition}", wanted, "bytes")
    number = size = 0
    with replacing(path) as file:
        for article in _articles(options.edition):
            content = (",\n" if number else "[").encode() + json.dumps(article, ensure_ascii=False).encode()
            file.write(content)
            number += 1
            size += len(content)
            progress.add(len(content))
            if size >= wanted:
                break
        if number == 0:
            raise DataError(f"{KEY}: {WIKIPEDIA} {options.edition} has no articles", "Name another workload.edition.")
        size += file.write(b"]\n")
    progress.end()
    return number, size


def _articles(edition: str) -> Iterator[Mapping[str, str]]:
    rows = load_from_hub(KEY, WIKIPEDIA, partial(_stream, edition), WIKIPEDIA_HINT, repo_type="dataset")
    number = 0
    try:
        for row in rows:
            number += 1
            yield {key: str(row[key]) for key in KEYS}
    except LOAD_ERRORS as error:
        lost = f"{WIKIPEDIA!r} was lost after {number} articles: {first_line(error)}"
        raise HubError(f"{KEY}: {lost}", WIKIPEDIA_HINT) from error


def _stream(edition: str, local_only: bool) -> Iterator[Mapping[str, Any]]:
    import datasets

    if local_only:
        raise FileNotFoundError(f"articles of {WIKIPEDIA} are streamed, never stored in the hub's cache")
    quiet_libraries()
    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # its errors reach the user as ours
    return iter(datasets.load_dataset(WIKIPEDIA, edition, split="train", streaming=True))
