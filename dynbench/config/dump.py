"""A configuration as YAML text that loads back to the same configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from dynbench.config.digest import recorded
from dynbench.config.schema import Config
from dynbench.config.yaml_strict import use_core_schema

_UNICODE_BREAKS = ("\x85", "\u2028", "\u2029")
"""Line breaks of YAML 1.1, which PyYAML would fold into spaces unless they are escaped."""


class _CoreDumper(yaml.SafeDumper):
    """Quotes what YAML 1.2 would not read as text, so that `dump` and `load` agree."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def short_list(self, data: Sequence[object]) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def text(self, data: str) -> yaml.Node:
        style = '"' if any(break_ in data for break_ in _UNICODE_BREAKS) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


use_core_schema(_CoreDumper)
_CoreDumper.add_representer(str, _CoreDumper.text)
_CoreDumper.add_representer(list, _CoreDumper.short_list)
_CoreDumper.add_representer(tuple, _CoreDumper.short_list)


def dump_config(config: Config) -> str:
    """Every field with its value, defaults included, in the schema's order; of plug-ins' options, as `recorded`."""
    return dump_yaml(recorded(config))


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
