"""Ids and names of runs: what they look like, and what is refused."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from dynbench.errors import RunLookupError

_SUFFIX_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_SUFFIX_LENGTH = 4
_ID = re.compile(r"(?P<time>\d{8}-\d{6})-(?P<slug>[a-z0-9]+(?:-[a-z0-9]+)*)-(?P<suffix>[a-z2-9]{4})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
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


def check_spelling(name: str) -> None:
    """Refuse names that a shell, a file system or the lookup would trip over.

    Raises:
        RunLookupError: the name is not of the allowed form, or looks like an id.
    """
    if not _NAME.fullmatch(name):
        raise RunLookupError(f"--name {name!r}: not allowed as a name", NAME_RULE)
    if _ID.fullmatch(name):
        raise RunLookupError(f"--name {name!r}: has the form of a run id", "Choose a name that no id can have.")
