"""The data sets: samples of labelled texts, tokens, lengths, or images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynbench.plugins.registry import Entry, PositiveFloat, Registry, Section
from dynbench.plugins.workloads import Kind

GLUE, WIKIPEDIA = "nyu-mll/glue", "wikimedia/wikipedia"
"""Repositories of the hub."""


@dataclass(frozen=True)
class DatasetEntry(Entry):
    """What gives the `Splits` of `dynbench.workloads.datasets.base` when called with the `workload` section.

    Args:
        generated: its samples are generated: where they are tokens it has no texts, and needs no tokenizer.
        classes: its samples have labels; of texts that it reads for a workload without classes, they are left out.
        samples: what they are made of; `embedded` makes what the workload learns from.
        folder: the user names a folder of files, not a file.
        repository: of the hub that it is fetched from; empty where it is not.
    """

    generated: bool = False
    classes: bool = True
    samples: tuple[Kind, ...] = ("texts",)
    folder: bool = False
    repository: str = ""

    @property
    def of_files(self) -> bool:
        """Whether it reads files that the user names."""
        return self.reads("data_path")

    @property
    def of_texts(self) -> bool:
        """Whether it has texts, which a tokenizer reads."""
        return "texts" in self.samples and not self.generated


class DataOptions(Section):
    """Of data sets that read what the user names."""

    data_path: str | None = None
    """Training file of `tsv`, `jsonl`, `csv`, `parquet`, `json` and `lengths`; folder of `image_folder` and `mnist`."""


class FileOptions(DataOptions):
    """Of data sets that read files."""

    eval_path: str | None = None
    """Evaluation file of the same; without it a part of the training texts is held out, and samples of `lengths` are
    generated in addition."""


class TextFileOptions(FileOptions):
    """Of data sets that read texts, with their labels where the workload learns them, from files."""

    text_column: str = "sentence"
    """Column that holds the text; where no label is learnt, `text` too."""
    label_column: str = "label"
    """Column that holds the label, an integer or a word; the different ones of the training file are the classes, in
    order."""


class SecondOptions(Section):
    """Of data sets whose samples may have a second number."""

    second_column: str | None = None
    """Column of a trace of `lengths` that holds a second number per sample, such as its image patches or the tokens
    that it generates: plans add what it costs (`schedule.second_weight`), and training does arithmetic in its place,
    as much per unit as the model's matrices need for a token."""


class TraceOptions(FileOptions, SecondOptions):
    """Of the data set that reads a trace of lengths."""

    length_column: str | None = None
    """Column of a trace of `lengths`; null takes `length`, or the only one."""


class WikipediaOptions(Section):
    """Of the data set that fetches articles from the hub."""

    megabytes: PositiveFloat = 10.0
    """Size of the articles that are fetched, the first ones of the edition, MB."""
    edition: str = "20231101.en"
    """Date and language, as the hub's wikimedia/wikipedia names them."""


def _ours(name: str, summary: str, target: str, options: type[Section] = Section, **facts: Any) -> DatasetEntry:
    return DatasetEntry(name, summary, f"dynbench.workloads.datasets.{target}", options, **facts)


def _images(name: str, summary: str, samples: Kind) -> DatasetEntry:
    return _ours(name, summary, f"images:load_{name}", DataOptions, samples=(samples,), folder=True)


def _text_file(name: str, summary: str) -> DatasetEntry:
    return _ours(name, summary, "text_files:load", TextFileOptions)


DATASETS: Registry[DatasetEntry] = Registry(
    "data set",
    "workload.dataset",
    (
        _ours(
            "embedded",
            "generated with SST-2's lengths, or as images; needs no network",
            "generated:load_embedded",
            generated=True,
            samples=("texts", "images", "digits"),
        ),
        _ours("lognormal", "generated with longer, heavy-tailed lengths", "generated:load_lognormal", generated=True),
        _ours("sst2", "GLUE SST-2 from the hub or its cache", "from_hub:load_sst2", repository=GLUE),
        _text_file("tsv", "texts of a tab-separated file"),
        _text_file("jsonl", "texts of a JSON Lines file"),
        _text_file("csv", "texts of a file with separators and quotes"),
        _text_file("parquet", "texts of a Parquet file"),
        _ours(
            "wikipedia",
            "articles of Wikipedia from the hub, without labels",
            "from_hub:load_wikipedia",
            WikipediaOptions,
            classes=False,
            repository=WIKIPEDIA,
        ),
        _ours("json", "articles of a JSON array, without labels", "text_files:load", FileOptions, classes=False),
        _ours(
            "lengths",
            "a trace of lengths, all trained on, with generated tokens",
            "generated:load_lengths",
            TraceOptions,
            generated=True,
        ),
        _images("image_folder", "images of a folder, train/CLASS/*.jpg and val/CLASS/*.jpg", "images"),
        _images("mnist", "handwritten digits of the idx files in a folder, plain or gzipped", "digits"),
    ),
)
