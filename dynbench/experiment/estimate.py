"""How long a comparison will take, by earlier runs of the same settings; nothing is guessed where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynbench.analysis.comparability import NOT_IDENTITY_OF_ARM
from dynbench.config.digest import config_digest
from dynbench.config.recipes import Recipe
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import resolve, this_machine
from dynbench.errors import RecordError
from dynbench.experiment.probing import wants_probe
from dynbench.runs.run import Run, duration_s
from dynbench.runs.status import Status
from dynbench.runs.store import RunStore
from dynbench.units import format_ms

ANY_LENGTH = (*NOT_IDENTITY_OF_ARM, "train.steps", "train.epochs", "train.warmup_steps")
LIKENESSES = (ANY_LENGTH, (*ANY_LENGTH, "schedule", "probe"))
"""Keys and sections in which a run that an arm is estimated by may differ from it; the first to find a run counts."""
MOST_RUNS = 50
"""Youngest training runs that are looked at."""


@dataclass(frozen=True)
class Estimate:
    """Of all launches together.

    Attributes:
        seconds: of the launches whose like was run before.
        known: how many these are.
        launches: how many there are.
        runs: ids of the runs that they were estimated by.
        probes: a probe comes before them, which is not counted.
    """

    seconds: float
    known: int
    launches: int
    runs: tuple[str, ...]
    probes: bool

    def __str__(self) -> str:
        """In a line."""
        probe = ", and a probe first" if self.probes else ""
        if not self.known:
            return f"time unknown: no completed run here has the same model, data, batch and ranks{probe}"
        part = "" if self.known == self.launches else f" for {self.known} of {self.launches} launches, others unknown"
        more = f" and {len(self.runs) - 1} more" if len(self.runs) > 1 else ""
        return f"about {format_ms(1000 * round(self.seconds))}{part}, by the time of {self.runs[0]}{more}{probe}"


def estimate(recipes: Sequence[Recipe], store: RunStore) -> Estimate:
    """By the latest completed run of each arm's settings, in proportion to the steps; else by one of another schedule.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    known = _by_likeness(store)
    seconds, known_launches, launches, probes = 0.0, 0, 0, False
    runs: list[str] = []
    for recipe in recipes:
        for asked in recipe.arms.values():
            config = resolve(asked, this_machine(), store).config
            launches += recipe.launches.planned
            probes = probes or wants_probe(asked)
            keys = (config_digest(config, ignored) for ignored in LIKENESSES)
            like = next((found[key] for found, key in zip(known, keys, strict=True) if key in found), None)
            if like is not None:
                seconds += recipe.launches.planned * like.step_s * _steps(config)
                known_launches += recipe.launches.planned
                runs.append(like.run)
    return Estimate(seconds, known_launches, launches, tuple(dict.fromkeys(runs)), probes)


@dataclass(frozen=True, slots=True)
class _Known:
    """A completed run, and its seconds per step, start and end included; of a shared launch, the arm's part."""

    run: str
    step_s: float


def _by_likeness(store: RunStore) -> list[dict[str, _Known]]:
    """Per likeness, digest of the settings that count to the youngest run that had them."""
    found: list[dict[str, _Known]] = [{} for _ in LIKENESSES]
    trained = [(run, record) for run, record in store.entries() if record.command == "train"]
    for run, record in trained[: -MOST_RUNS - 1 : -1]:
        took_s = duration_s(record)
        if record.status is not Status.COMPLETED or took_s is None:
            continue
        try:
            config, arms = run.config(), _arms_of(run)
        except RecordError:  # a broken run of another day is no reason to fail this one
            continue
        took_s /= arms
        for known, ignored in zip(found, LIKENESSES, strict=True):
            known.setdefault(config_digest(config, ignored), _Known(run.id, took_s / _steps(config)))
    return found


def _arms_of(run: Run) -> int:
    """How many arms its launch had."""
    together = run.env().get("together") if run.env_file.exists() else None
    return len(together["arms"]) if isinstance(together, dict) and "arms" in together else 1


def _steps(config: Config) -> int:
    return config.train.warmup_steps + config.train.steps
