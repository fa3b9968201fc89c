"""Settings laid over each other, from files and the command line, into one configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from dynbench.config import describe
from dynbench.config.describe import explain, shown
from dynbench.config.paths import path_problems
from dynbench.config.rules import check_rules, known_world_size
from dynbench.config.schema import Config
from dynbench.config.typed_text import read_text
from dynbench.config.yaml_strict import Document, Value, read_yaml
from dynbench.config.yaml_strict import Mapping as YamlMapping
from dynbench.errors import ConfigError, UsageError
from dynbench.plugins.policies import Layout, named_plan, plan_of

PAIRS = {
    ("train.steps", "train.epochs"): "how long to train",
    ("train.global_batch", "train.batch_per_worker"): "how large a step is",
}
"""A usual setting and another one, which is null where it is not used, and what both say."""


def replaced_by(keys: Iterable[str]) -> Iterator[str]:
    """The settings below that those of `keys`, given together, take the place of."""
    given = set(keys)
    for pair in PAIRS:
        yield from (key for key, other in (pair, pair[::-1]) if other in given and key not in given)


def given_twice(keys: Iterable[str]) -> Iterator[str]:
    """What is wrong with `keys`, given together: a line for each pair of which both are there."""
    given = set(keys)
    for (one, other), both in PAIRS.items():
        if one in given and other in given:
            yield f"{other}: given beside {one}, and both say {both}; leave one of them out"


@dataclass
class Layers:
    """A document with values laid over it, each remembering who gave it.

    Args:
        document: the lowest layer above the defaults.
    """

    document: Document
    given_by: dict[str, str] = field(default_factory=dict)
    opened_by: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = deepcopy(self.document.mapping)
        self.problems.extend(self.document.problems)

    def lay(self, overrides: Sequence[str], flags: Mapping[str, object]) -> None:
        """Lay what the command line sets over what is there: `--set`, then flags; None values count as not given."""
        keys = [text.partition("=")[0].strip() for text in overrides]
        keys += [key for key, value in flags.items() if value is not None]
        self.problems.extend(given_twice(keys))
        self.give_way(keys)
        for text in overrides:
            self.override(text)
        for key, value in flags.items():
            if value is not None:
                self.flag(key, value)

    def give_way(self, keys: Iterable[str]) -> None:
        """Take out what is there of settings that those of `keys`, which are laid over it, say in another way."""
        for key in replaced_by(keys):
            section, _, name = key.partition(".")
            held = self.values.get(section)
            if isinstance(held, dict):
                held.pop(name, None)

    def override(self, text: str) -> None:
        """Lay `a.b=c` over what is there; a mistake joins `problems`."""
        key, equals, raw = text.partition("=")
        key = key.strip()
        if not equals or not key:
            self.problems.append(f"--set {text}: write it as key=value, like --set train.steps=200")
            return
        try:
            self._put(key, read_text(key, raw.strip(), f"--set {key}"), "--set ")
        except ConfigError as error:
            self.problems.extend(error.problems)

    def flag(self, key: str, value: object) -> None:
        """Lay the value of a command-line flag over what is there; a mistake joins `problems`."""
        try:
            self.typed(key, read_text(key, value, key) if isinstance(value, str) else cast(Value, value))
        except ConfigError as error:
            self.problems.extend(error.problems)

    def typed(self, key: str, value: Value) -> None:
        """Lay a copy of a value over what is there as it is: text that looks like a number stays text."""
        self._put(key, deepcopy(value), "")

    def config(self, *, rules: bool = True, paths: bool = False, trains: bool = True) -> Config:
        """The validated configuration.

        Args:
            rules: also check the rules over several fields.
            paths: also look up the files and folders that training reads.
            trains: ranks are to train with it; False leaves out the rules on their batches.

        Raises:
            ConfigError: every mistake found in any layer.
        """
        self.problems.extend(f"{self._where(line.partition(':')[0])}{line}" for line in self._said_twice())
        values = self._spelled_out()
        sections = {key: {} if value is None else freeze(value) for key, value in values.items()}
        try:
            config = Config.model_validate(sections)
        except ValidationError as error:
            self.problems.extend(explain(error, values, self._where))
        else:
            if not self.problems:
                found = check_rules(config, known_world_size(config), trains=trains) if rules else []
                found += path_problems(config) if paths else []
                self.problems.extend(self._located(problem) for problem in found)
        if self.problems:
            raise ConfigError(self.problems)
        return config

    def _said_twice(self) -> Iterator[str]:
        """What the document alone says in two ways; one that says all of a section is that of a run, which follows."""
        given = []
        for section, values in self.values.items():
            model, whole = describe.section_of(str(section)), self.document.mapping.get(section)
            if model is None or (isinstance(whole, dict) and {*model.model_fields} <= {*whole}):
                continue
            if isinstance(values, dict):
                keys = (f"{section}.{name}" for name, value in values.items() if value is not None)
                given += [key for key in keys if key not in self.given_by]
        return given_twice(given)

    def _spelled_out(self) -> YamlMapping:
        """The values, with a policy's name that says a layout too (`packed`) put as the two settings that it means."""
        schedule, workload = self.values.get("schedule"), self.values.get("workload") or {}
        name = schedule.get("policy") if isinstance(schedule, dict) else None
        if not isinstance(name, str) or not isinstance(workload, dict) or plan_of(name)[0] == name:
            return self.values
        policy, layout = plan_of(name)
        try:
            named_plan(name, cast("Layout | None", workload.get("layout")))
        except UsageError as error:
            self.problems.append(f"{self._where('workload.layout')}{error.message}")
        assert isinstance(schedule, dict)
        meant: YamlMapping = {"schedule": {**schedule, "policy": policy}, "workload": {**workload, "layout": layout}}
        return {**self.values, **meant}

    def _put(self, dotted: str, value: Value, opening: str) -> None:
        *parents, last = dotted.split(".")
        node: YamlMapping = self.values
        for depth, part in enumerate(parents):
            child = node.get(part)
            if not isinstance(child, dict):
                above = ".".join(parents[: depth + 1])
                if child is not None:
                    self.problems.append(f"{self._where(above)}{above}: {shown(child)} cannot hold {dotted}")
                child = node[part] = {}
                self.opened_by.setdefault(above, opening)
            node = child
        found = describe.field_of(dotted)
        key = int(last) if found is not None and found[1] and last.isdecimal() else last
        node[key] = value
        self.given_by[dotted] = opening

    def _where(self, dotted: str) -> str:
        """How a message opens: the file and line, or nothing for what the command line gave."""
        if dotted in self.opened_by:
            return self.opened_by[dotted]
        parts = dotted.split(".")
        for depth in range(len(parts), 0, -1):
            key = ".".join(parts[:depth])
            if key in self.given_by:
                return self.given_by[key]
            if place := self.document.place(key):
                return f"{place}: "
        return f"{self.document.source}: " if self.document.source and not self.given_by else ""

    def _located(self, problem: str) -> str:
        return f"{self._where(problem.partition(':')[0])}{problem}"


def freeze(value: object) -> object:
    """Lists as tuples: the schema's sequences are tuples, and strict validation does not convert."""
    if isinstance(value, dict):
        return {key: freeze(item) for key, item in value.items()}
    return tuple(freeze(item) for item in value) if isinstance(value, list) else value


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
