"""The options of a benchmark from the command line."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from dynbench.config.describe import not_allowed
from dynbench.config.layers import freeze
from dynbench.config.typed_text import read_field
from dynbench.config.yaml_strict import Value
from dynbench.errors import ConfigError, did_you_mean
from dynbench.plugins import BENCHMARKS, Section


def read_options(name: str, texts: Sequence[str]) -> Section:
    """The options of a benchmark from texts like `sizes_mib=1,10`.

    Raises:
        UsageError: no such benchmark.
        ConfigError: every mistake found.
    """
    options = BENCHMARKS.find(name).options
    fields, problems = options.model_fields, []
    values: dict[str, Value] = {}
    for text in texts:
        key, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            problems.append(f"--set {text}: write it as key=value")
        elif key not in fields:
            problems.append(f"--set {key}: no option of {name}. {did_you_mean(key, fields)}".rstrip())
        else:
            try:
                values[key] = read_field(fields[key], (), raw, f"--set {key}")
            except ConfigError as error:
                problems += error.problems
    try:
        found = options.model_validate(freeze(values))
    except ValidationError as error:
        wrong = dict.fromkeys(str(item["loc"][0]) for item in error.errors())
        problems += [f"--set {key}: {not_allowed(fields[key], values[key])}" for key in wrong]
    if problems:
        raise ConfigError(problems, f"Options of {name}: {', '.join(fields)}.")
    return found
