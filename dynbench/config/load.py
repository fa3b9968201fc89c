"""Loading a configuration: YAML file, then `--set` texts, then flags; every mistake reported at once."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynbench.config.layers import Layers
from dynbench.config.schema import Config
from dynbench.config.yaml_strict import Document, read_yaml
from dynbench.config.yaml_strict import Mapping as YamlMapping
from dynbench.errors import ConfigError, UsageError


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    *,
    paths: bool = False,
    trains: bool = True,
) -> Config:
    """The configuration of a command: flags over `--set` over the file over the defaults.

    Args:
        path: a YAML file, or None.
        overrides: texts like `train.steps=200`; the value is read as in a YAML file.
        flags: dotted key to value, typed or as typed by the user; None values count as not given.
        paths: also look up the files and folders that training reads.
        trains: ranks are to train with it; False leaves out the rules on their batches.

    Raises:
        ConfigError: every mistake found, each opening with `file:line` where it has one, and its dotted key.
        UsageError: the file cannot be read.
    """
    document = Document("") if path is None else read_document(path)
    if "arms" in document.mapping:
        raise ConfigError(
            [f"{document.place('arms')}: arms: a recipe, which compares arms; expected a single configuration"],
            f"Run it with `dynbench compare {shlex.quote(str(path))}`. For one of its arms, give -c a file of what "
            "stands under `settings`, and what the arm sets with --set.",
        )
    layers = Layers(document)
    layers.lay(overrides, flags or {})
    return layers.config(paths=paths, trains=trains)


def load_mapping(path: Path) -> Document:
    """A YAML file as a mapping with the lines of its dotted keys, for files that hold more than a configuration.

    Raises:
        ConfigError: the file is not strict YAML.
        UsageError: the file cannot be read.
    """
    document = read_document(path)
    if document.problems:
        raise ConfigError(document.problems)
    return document


def validate_config(mapping: YamlMapping, document: Document, *, rules: bool = True) -> Config:
    """The configuration of a mapping that is already read.

    Args:
        mapping: sections and their fields, plain values.
        document: where the values come from; its lines are named in messages.
        rules: also check the rules over several fields.

    Raises:
        ConfigError: every mistake found.
    """
    located = Document(document.source, mapping, document.positions)
    return Layers(located).config(rules=rules)


def read_document(path: Path) -> Document:
    """Read a YAML file without raising for what is in it.

    Raises:
        UsageError: the file cannot be read.
    """
    return read_yaml(yaml_text(path), str(path))


def yaml_text(path: Path) -> str:
    """The text of a YAML file.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text at byte {error.start}"
        raise UsageError(f"{path}: cannot be read: {reason}", "Give a YAML file.") from error
