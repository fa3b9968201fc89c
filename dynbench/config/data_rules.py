"""Rules on what is trained on: files that are named, labels that are there, samples of the workload's kind."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.config.image_rules import known_entry
from dynbench.config.schema import Config, Workload
from dynbench.plugins import DATASETS, WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions, SecondOptions, TextFileOptions


def _data_files(config: Config) -> Iterator[str]:
    workload, files = config.workload, options_of(config.workload, TextFileOptions)
    dataset = DATASETS[workload.dataset]
    if dataset.of_files and files.data_path is None:
        kind = "folder" if dataset.folder else "file"
        yield (
            f"workload.data_path: null, but dataset {workload.dataset!r} reads a {kind}; "
            f"name it (--data-path {kind.upper()})"
        )
    options = (*FileOptions.model_fields, *SecondOptions.model_fields)
    asked = {option: (getattr(workload, option), DATASETS.readers(option)) for option in options}
    texts = [name for name, entry in DATASETS.items() if entry.of_files and entry.of_texts]
    asked["tokenizer"] = (workload.tokenizer, [workload.dataset] if dataset.of_texts else texts)
    for key, (value, readers) in asked.items():
        if value is not None and workload.dataset not in readers and not workload.runs_own_code:
            fitting = [name for name in readers if _fits(workload, name)]
            last = " or ".join(fitting[-2:])
            others = f"set workload.dataset to {', '.join([*fitting[:-2], last])}, or " if fitting else ""
            yield (f"workload.{key}: {value!r} is not read by dataset {workload.dataset!r}; {others}leave it out")
    if files.text_column == files.label_column:
        yield f"workload.label_column: {files.label_column!r} is the text column too; name another"


def _fits(workload: Workload, dataset: str) -> bool:
    """Whether a data set has what the workload learns from, as far as is known."""
    entry = WORKLOADS.get(workload.name)
    return entry is None or entry.samples in DATASETS[dataset].samples


def _labels_are_there(config: Config) -> Iterator[str]:
    workload = config.workload
    if workload.runs_own_code or DATASETS[workload.dataset].classes or not WORKLOADS[workload.name].classes:
        return
    named = [name for name, entry in WORKLOADS.items() if not entry.classes]
    yield (
        f"workload.dataset: {workload.dataset!r} has texts without labels, which {workload.name} is to learn; "
        f"set workload.name to {' or '.join(named)} (--workload), or name a data set with labels"
    )


def _the_data_are_of_the_workloads_kind(config: Config) -> Iterator[str]:
    entry, dataset = known_entry(config), DATASETS[config.workload.dataset]
    if entry is None or entry.samples in dataset.samples:
        return
    fitting = [name for name, other in DATASETS.items() if entry.samples in other.samples]
    yield (
        f"workload.dataset: {dataset.name!r} has {' or '.join(dataset.samples)}, and {entry.name} learns from "
        f"{entry.samples}; set it to {' or '.join(fitting)} (--dataset), or name another workload (--workload)"
    )


DATA_RULES = (_data_files, _labels_are_there, _the_data_are_of_the_workloads_kind)
