"""What a check of `dynbench doctor` saw."""

from __future__ import annotations

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


WITHOUT_TORCH = Diagnosis(False, "unknown without torch", "Install it: pip install torch.")
