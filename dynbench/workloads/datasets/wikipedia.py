"""Articles of Wikipedia from the hub, as many as are asked for, kept as the JSON array that `json` reads."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dynbench.config.schema import Workload
from dynbench.errors import DataError, HubError
from dynbench.plugins import options_of
from dynbench.plugins.datasets import WikipediaOptions
from dynbench.runs.atomic import locked, replacing
from dynbench.units import BYTES_PER_MB
from dynbench.workloads.cache import cache_folder
from dynbench.workloads.datasets.articles import stream_file
from dynbench.workloads.datasets.base import Splits
from dynbench.workloads.datasets.json import KEYS, read
from dynbench.workloads.hub import LOAD_ERRORS, first_line, load_from_hub, quiet_libraries
from dynbench.workloads.pace import Pace

KEY = "workload.dataset"
REPOSITORY = "wikimedia/wikipedia"
WAYS_OUT = (
    "Where there is a network, dynbench data wikipedia -o FILE writes the articles to a file; here, "
    "--dataset json --data-path FILE reads it."
)


def load(settings: Workload) -> Splits:
    """The articles, fetched into the folder of `workload.cache_dir` where they are not there.

    Raises:
        HubError: they are not there, and the hub cannot be reached.
        DataError: an edition without articles, or a cache that cannot be written.
    """
    asked, folder = options_of(settings, WikipediaOptions), cache_folder(settings)
    path = folder / f"wikipedia-{asked.edition}-{asked.megabytes:g}MB.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                export(path, asked)
    except OSError as error:
        raise DataError(
            f"workload.cache_dir: {error.filename or folder}: {error.strerror or error}; articles cannot be kept there",
            "Name a writable folder in workload.cache_dir.",
        ) from error
    return Splits(stream_file(path, KEY, settings, read))


def export(path: Path, asked: WikipediaOptions) -> tuple[int, int]:
    """Write the first articles of an edition to a file, all or nothing.

    Args:
        path: the file.
        asked: the edition, and how much of it.

    Returns:
        How many articles, and bytes.

    Raises:
        HubError: the hub cannot be reached, or is lost on the way.
        DataError: there are no articles.
        OSError: the file cannot be written.
    """
    wanted = round(asked.megabytes * BYTES_PER_MB)
    pace = Pace(f"fetching {REPOSITORY} {asked.edition}", wanted, "bytes")
    number = size = 0
    with replacing(path) as file:
        for article in _articles(asked.edition):
            content = (",\n" if number else "[").encode() + json.dumps(article, ensure_ascii=False).encode()
            file.write(content)
            number += 1
            size += len(content)
            pace.add(len(content))
            if size >= wanted:
                break
        if number == 0:
            raise DataError(f"{KEY}: {REPOSITORY} {asked.edition} has no articles", "Name another workload.edition.")
        size += file.write(b"]\n")
    pace.end()
    return number, size


def _articles(edition: str) -> Iterator[Mapping[str, str]]:
    rows = load_from_hub(KEY, REPOSITORY, partial(_stream, edition), WAYS_OUT, repo_type="dataset")
    number = 0
    while True:
        try:
            row = next(rows, None)
        except LOAD_ERRORS as error:
            said = f"{REPOSITORY!r} was lost after {number} articles: {first_line(error)}"
            raise HubError(f"{KEY}: {said}", WAYS_OUT) from error
        if row is None:
            return
        number += 1
        yield {key: str(row[key]) for key in KEYS}


def _stream(edition: str, local_only: bool) -> Iterator[Mapping[str, Any]]:
    import datasets

    if local_only:
        raise FileNotFoundError(f"articles of {REPOSITORY} are streamed, never kept in the hub's cache")
    quiet_libraries()
    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # its errors reach the user as ours
    return iter(datasets.load_dataset(REPOSITORY, edition, split="train", streaming=True))
