"""YAML as people expect it: the core schema of YAML 1.2, duplicate keys refused, line numbers kept.

PyYAML follows YAML 1.1, where `1e-4` is text, `no` is false, `3:30` is 210 and `012` is 10. Here they are 0.0001,
text, text and 12 (YAML 1.2.2, section 10.3.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from dynbench.errors import ConfigError

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str | int, Value] | None"
YamlMapping: TypeAlias = "dict[str | int, Value]"
Positions: TypeAlias = "dict[str, int | str]"
"""Dotted key to its line in the file, counted from 1, or to the option of the command line that gave it."""

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_STR = "tag:yaml.org,2002:str"
_MAP = "tag:yaml.org,2002:map"
_SEQ = "tag:yaml.org,2002:seq"

_PATTERNS: tuple[tuple[str, str, str | None], ...] = (
    (_NULL, r"^(?:~|null|Null|NULL|)$", None),
    (_BOOL, r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    (_INT, r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        _FLOAT,
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
)

_READ: dict[str, Callable[[str], Value]] = {
    _NULL: lambda text: None,
    _BOOL: lambda text: text.lower() == "true",
    _INT: lambda text: int(text, {"0o": 8, "0x": 16}.get(text[:2], 10)),
    _FLOAT: lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    _STR: str,
}
"""Tag of a scalar to what its text means."""

_ADVICE = {"@": "quote the value", "`": "quote the value", "%": "quote the value", "\t": "indent with spaces"}
"""What to do about a character that cannot stand where it was found."""


def use_core_schema(cls: type[yaml.SafeLoader] | type[yaml.CSafeLoader] | type[yaml.SafeDumper]) -> None:
    """Replace the YAML 1.1 scalar rules of a loader or dumper class by those of YAML 1.2."""
    cls.yaml_implicit_resolvers = {}
    for tag, pattern, first in _PATTERNS:
        starts = [None] if first is None else list(first)
        cls.add_implicit_resolver(tag, re.compile(pattern), starts)


class _CoreLoader(yaml.SafeLoader):
    """Composes nodes under the YAML 1.2 core schema; values are made by `_Reader`."""


use_core_schema(_CoreLoader)
_FastLoader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = _CoreLoader
"""The same in C where PyYAML has it: ten times as fast, but it says less of a mistake and nests without a limit."""
if yaml.__with_libyaml__:

    class _CoreCLoader(yaml.CSafeLoader):
        """As `_CoreLoader`."""

    use_core_schema(_CoreCLoader)
    _FastLoader = _CoreCLoader

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_FAST_DEPTH = 1000
"""Nesting up to which the C loader is let."""
_MOST_VALUES = 100_000
"""Keys and values of a text with its aliases written out; more is a mistake or an attack."""


@dataclass
class Document:
    """A YAML mapping with the line of every dotted key, and what was wrong with it.

    Args:
        source: what messages call the text, usually its path.
        mapping: the values; keys in error are left out.
        positions: dotted key to line, or to what gave it in place of a line.
        problems: one line per mistake, each opening with `source:line`.
    """

    source: str
    mapping: YamlMapping = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def where(self, dotted: str) -> str:
        """`source:line` of a dotted key or of its nearest parent that has a line, or the option that gave it."""
        key = dotted
        while key and key not in self.positions:
            key = key.rpartition(".")[0]
        position = self.positions.get(key, self.source)
        return f"{self.source}:{position}" if isinstance(position, int) else position

    def opening(self, dotted: str) -> str:
        """How a message about a dotted key opens."""
        return f"{self.where(dotted)}: "


class _Refused(Exception):
    """A value that was refused; the problem is in the document, and its key is left out of the mapping."""


class _Reader:
    """Turns nodes into values, collecting positions and problems into a document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.open_nodes: set[int] = set()
        self.values = 0

    def problem(self, line: int | str, text: str) -> None:
        self.document.problems.append(f"{self.document.source}:{line}: {text}")

    def value(self, node: Node, path: str) -> Value:
        if id(node) in self.open_nodes:
            self.problem(self.document.positions.get(path, _line(node)), f"{path}: contains itself through an alias")
            raise _Refused
        self.values += 1
        if self.values > _MOST_VALUES:
            raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values, its aliases written out; name fewer")
        self.open_nodes.add(id(node))
        try:
            if not isinstance(node, ScalarNode) and node.tag not in (_MAP, _SEQ):
                raise self.refused_tag(node, path)
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.value(item, f"{path}.{i}") for i, item in enumerate(node.value)]
            return self.scalar(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def mapping(self, node: MappingNode, path: str) -> YamlMapping:
        result: YamlMapping = {}
        lines: dict[Hashable, int] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            with suppress(_Refused):
                key = self.key(key_node, path)
                dotted = f"{path}.{key}" if path else str(key)
                if key in lines:
                    self.problem(line, f"{dotted}: given twice, first in line {lines[key]}; keep one")
                    continue
                lines[key] = line
                self.document.positions[dotted] = line
                result[key] = self.value(value_node, dotted)
        return result

    def key(self, node: Node, path: str) -> str | int:
        key = self.scalar(node, path) if isinstance(node, ScalarNode) else None
        if isinstance(key, str | int) and not isinstance(key, bool):
            return key
        text = f"{node.value!r}; quote it" if isinstance(node, ScalarNode) else "a list or mapping"
        self.problem(_line(node), f"{path or 'top level'}: a key must be text or a whole number, not {text}")
        raise _Refused

    def scalar(self, node: Node, path: str) -> Value:
        text: str = node.value
        if node.tag not in _READ or (node.tag == _BOOL and text.lower() not in ("true", "false")):
            raise self.refused_tag(node, path)
        try:
            value = _READ[node.tag](text)
        except ValueError:  # more digits than Python reads
            self.problem(_line(node), f"{path}: a number of {len(text):,} digits")
            raise _Refused from None
        if isinstance(value, str) and not _is_text(value):
            self.problem(_line(node), f"{path}: {value!r} holds what is no character of a text")
            raise _Refused
        return value

    def refused_tag(self, node: Node, path: str) -> _Refused:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        self.problem(_line(node), f"{path}: the tag {tag} is not supported")
        return _Refused()


def _line(node: Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def read_yaml(text: str, source: str) -> Document:
    """Read one YAML mapping without raising: mistakes are in the document's `problems`.

    Args:
        text: the YAML text; an empty one is an empty mapping.
        source: what messages call it.
    """
    document = Document(source)
    try:
        root = _compose(text)
        if root is None or (isinstance(root, ScalarNode) and root.tag == _NULL):
            return document
        if not isinstance(root, MappingNode):
            line = root.start_mark.line + 1
            document.problems.append(f"{source}:{line}: expected `key: value` lines at the top level")
            return document
        document.mapping = _Reader(document).mapping(root, "")
    except yaml.YAMLError as error:
        document.problems.append(_syntax_problem(error, text, source))
    except RecursionError:
        document.problems.append(f"{source}:1: nested too deeply to be read")
    return document


def _is_text(value: str) -> bool:
    """Whether files and system calls take it: nothing in it is null or half a character."""
    return "\0" not in value and (value.isascii() or not _HALF_CHARACTER.search(value))


def _compose(text: str) -> Node | None:
    lines = text.splitlines()
    # What opens in a line indents, or is a bracket: neither nests more often than there are such characters.
    depth = 2 * max(map(len, lines), default=0) + sum(map(text.count, "[{"))
    if depth <= _FAST_DEPTH:
        with suppress(yaml.YAMLError, UnicodeEncodeError):
            return yaml.compose(text, _FastLoader)
    loader = _CoreLoader(text)
    try:
        return loader.get_single_node()
    except (ValueError, OverflowError) as error:
        problem = "an escape names a number that is no character"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=loader.get_mark()) from error
    finally:
        loader.dispose()


def parse_yaml(text: str, source: str) -> Document:
    """Read one YAML mapping that has to be without mistakes.

    Raises:
        ConfigError: syntax errors, duplicate keys, unsupported tags; all of them, with `source:line`.
    """
    document = read_yaml(text, source)
    if document.problems:
        raise ConfigError(document.problems)
    return document


def parse_scalar(text: str, source: str) -> Value:
    """One value as it would stand behind `key:` in a YAML file: a scalar, `[list]` or `{mapping}`.

    Raises:
        ConfigError: the text is not YAML.
    """
    document = Document(source)
    try:
        node = _compose(text)
        value = None if node is None else _Reader(document).value(node, source)
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: {text!r} is not a YAML value: {_reason(error)}"]) from None
    except RecursionError:
        raise ConfigError([f"{source}: nested too deeply to be read"]) from None
    except _Refused:
        value = None
    if document.problems:
        raise ConfigError([problem.partition(": ")[2] for problem in document.problems])
    return value


def _reason(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).splitlines()[0]
    reason = ", ".join(part.removeprefix("but ") for part in (error.context, error.problem) if part)
    advice = next((text for sign, text in _ADVICE.items() if f"found character {sign!r}" in reason), "")
    return f"{reason}; {advice}" if advice else reason


def _syntax_problem(error: yaml.YAMLError, text: str, source: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = text.count("\n", 0, getattr(error, "position", 0)) if mark is None else mark.line
    return f"{source}:{line + 1}: not valid YAML: {_reason(error)}"


# Written --------------------------------------------------------------------------------------------------------------

_UNICODE_BREAKS = ("\x85", "\u2028", "\u2029")
"""Line breaks of YAML 1.1, which PyYAML would fold into spaces unless they are escaped."""


class _CoreDumper(yaml.SafeDumper):
    """Quotes what YAML 1.2 would not read as text, so that `dump` and `load` agree."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def short_list(self, data: Sequence[object]) -> yaml.Node:
        return self.represent_sequence(_SEQ, data, flow_style=True)

    def text(self, data: str) -> yaml.Node:
        style = '"' if any(break_ in data for break_ in _UNICODE_BREAKS) else None
        return self.represent_scalar(_STR, data, style=style)


use_core_schema(_CoreDumper)
_CoreDumper.add_representer(str, _CoreDumper.text)
_CoreDumper.add_representer(list, _CoreDumper.short_list)
_CoreDumper.add_representer(tuple, _CoreDumper.short_list)


def dump_yaml(mapping: Mapping[str, object], items: Sequence[str] = ()) -> str:
    """A mapping of plain values as YAML 1.2 text: keys in the given order, one a line, lists within theirs.

    Args:
        mapping: the values.
        items: keys of lists whose items get a line each.
    """
    lines = []
    for key, value in mapping.items():
        if key in items and isinstance(value, list | tuple) and value:
            lines += [f"{key}:\n", *(f"  - {_dump(item, flow=True)}" for item in value)]
        else:
            lines.append(_dump({key: value}, flow=False))
    return "".join(lines)


def _dump(value: object, *, flow: bool) -> str:
    text: str = yaml.dump(
        value, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=2**31
    )
    return text
