"""What a check of `dynbench doctor` saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """What a check saw.

    Args:
        ok: False when something would go wrong or be misleading.
        seen: the observation, with the limit where there is one.
        hint: the next step; empty when all is well.
    """

    ok: bool
    seen: str
    hint: str = ""


def judged(ok: bool, seen: str, hint: str) -> Diagnosis:
    """With the next step where there is one to take."""
    return Diagnosis(ok, seen, "" if ok else hint)


def guarded(check: Callable[[], Diagnosis]) -> Diagnosis:
    """What a check saw; what the system denies it is seen too, and ends no other check."""
    try:
        return check()
    except OSError as error:
        seen = f"{error.filename or 'the system'}: {error.strerror or error}"
        return Diagnosis(False, seen, "Give this user the right to read it, or name another place.")


WITHOUT_TORCH = Diagnosis(False, "unknown without torch", "Install it: pip install torch.")
