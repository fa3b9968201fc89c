"""A configuration with some of its values changed."""

from __future__ import annotations

from collections.abc import Mapping

from dynbench.config.schema import Config


def changed(config: Config, changes: Mapping[str, object]) -> Config:
    """The configuration with other values, which are not validated.

    Args:
        config: what to change.
        changes: dotted key to a value of the field's type.
    """
    sections: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=fields) for section, fields in sections.items()}
    )
