"""Ids and names of runs: what they look like, and what is refused."""

from __future__ import annotations

import os
import re
import secrets
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator

from dynbench.errors import RunLookupError

_SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_SUFFIX_LENGTH = 4
_ID = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<slug>[a-z0-9]+(?:-[a-z0-9]+)*)-(?P<suffix>[a-z2-9]{4})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NOT_NAMES = ("", os.curdir, os.pardir)
"""Last parts of a path that name no folder within the one before."""
NAME_RULE = "A name starts with a letter or digit and goes on with letters, digits, '.', '_' or '-', up to 64 in all."


def new_id(slug: str) -> str:
    """A run id: UTC time, slug, random suffix, like `20261120-145312-dynamic-k3f9`."""
    suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(_SUFFIX_LENGTH))
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{make_slug(slug)}-{suffix}"


def make_slug(text: str) -> str:
    """Lower-case letters and digits joined by single dashes; `run` when nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "run"


def slug_of(run_id: str) -> str | None:
    """The slug within an id; None when it is not an id."""
    match = _ID.fullmatch(run_id)
    return match["slug"] if match else None


def ids_in(text: str) -> set[str]:
    """Every id that stands in a text."""
    return {match[0] for match in _ID.finditer(text)}


def is_part(text: str) -> bool:
    """Whether a text names something within a folder, and cannot lead out of it."""
    return text not in NOT_NAMES and os.sep not in text and text.isprintable()


def _part(text: str) -> str:
    if not is_part(text):
        raise ValueError(f"{text!r} is no id of a run")
    return text


RunId = Annotated[str, AfterValidator(_part)]
"""An id as a record names it, looked up below a results folder."""


def is_name(text: str) -> bool:
    """Whether a run may be called so."""
    return _NAME.fullmatch(text) is not None


def check_spelling(name: str) -> None:
    """Refuse names that a shell, a file system or the lookup would trip over.

    Raises:
        RunLookupError: the name is not of the allowed form, or looks like an id.
    """
    if not is_name(name):
        raise RunLookupError(f"--name {name!r}: not allowed as a name", NAME_RULE)
    if _ID.fullmatch(name):
        raise RunLookupError(f"--name {name!r}: has the form of a run id", "Choose a name that no id can have.")
