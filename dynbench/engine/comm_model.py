"""What the all-reduce of a step costs where virtual ranks send nothing: a stated model, never a guess."""

from __future__ import annotations

import json
import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dynbench.engine.planning import find_run, load_probe
from dynbench.errors import UsageError
from dynbench.runs.phrase import Phrase
from dynbench.runs.store import RunStore

FILE_SCHEMA_VERSION = 1


class CommModel(Protocol):
    """Predicted time of one all-reduce."""

    @property
    def description(self) -> Phrase:
        """Shown wherever the virtual step time is."""

    def allreduce_ms(self, megabytes: float, world_size: int) -> float:
        """Milliseconds for a buffer of `megabytes` (1e6 bytes) over `world_size` ranks."""


@dataclass(frozen=True, slots=True)
class NoComm:
    """Communication takes no time."""

    @property
    def description(self) -> Phrase:
        """That there is none."""
        return Phrase.of("comm_model.none")

    def allreduce_ms(self, megabytes: float, world_size: int) -> float:
        """Zero."""
        return 0.0


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Latency and inverse bandwidth of a whole all-reduce, as given."""

    alpha_ms: float
    beta_ms_per_mb: float

    @property
    def description(self) -> Phrase:
        """The formula."""
        return Phrase.of("comm_model.given", alpha_ms=self.alpha_ms, beta_ms_per_mb=self.beta_ms_per_mb)

    def allreduce_ms(self, megabytes: float, world_size: int) -> float:
        """Alpha + beta * size, whatever the number of ranks."""
        return self.alpha_ms + self.beta_ms_per_mb * megabytes


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured all-reduces: interpolated over size, scaled over ranks.

    A ring all-reduce moves 2(G-1)/G of the buffer per rank (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
    2009), so a measurement with another number of ranks is scaled by that factor.
    """

    source: str
    megabytes: tuple[float, ...]
    """Ascending."""
    ms: tuple[float, ...]
    world_size: int

    @property
    def description(self) -> Phrase:
        """The source."""
        return Phrase.of("comm_model.measured", world_size=self.world_size, source=self.source)

    def allreduce_ms(self, megabytes: float, world_size: int) -> float:
        """Interpolated between the measured sizes, proportional to size beyond the largest."""
        if megabytes > self.megabytes[-1]:
            at_size = self.ms[-1] * megabytes / self.megabytes[-1]
        else:
            at_size = float(np.interp(megabytes, self.megabytes, self.ms))
        return at_size * _ring_share(world_size) / _ring_share(self.world_size)


def build_comm_model(text: str | None, root: Path) -> CommModel:
    """The model of `launch.comm_model`.

    Args:
        text: null or `none`; `ALPHA_MS,BETA_MS_PER_MB`; a JSON file; or a probe run.
        root: results folder in which a probe run is looked up.

    Raises:
        UsageError: none of these, or a file of another schema.
    """
    if text is None or text == "none":
        return NoComm()
    if (pair := _number_pair(text)) is not None:
        return AlphaBeta(*pair)
    return read_comm_file(Path(text)) if _is_file(text) else _from_probe(text, root)


def decide_comm_model(
    text: str | None, store: RunStore, decisions: MutableMapping[str, dict[str, object]]
) -> str | None:
    """`launch.comm_model` with a probe run by its id: `@latest` and names mean another run later.

    Raises:
        UsageError: a negative number.
        RunLookupError: no such run, or more than one; names the setting.
    """
    if text is None or text == "none" or _number_pair(text) is not None or _is_file(text):
        return text
    run = find_run(store, "launch.comm_model", text).id
    decisions["launch.comm_model"] = {"value": run, "reason": f"run meant by {text!r}"}
    return run


def _is_file(text: str) -> bool:
    return Path(text).suffix == ".json" or Path(text).is_file()


def charged_ms(text: str | None, gradient_mb: float, world_size: int, root: Path) -> float:
    """What a step of virtual ranks is charged for the all-reduce of its gradient, ms, and a prediction of it too.

    Args:
        text: `launch.comm_model`.
        gradient_mb: size of all gradients, MB.
        world_size: virtual ranks (G).
        root: as for `build_comm_model`.

    Raises:
        UsageError: as `build_comm_model`.
    """
    return build_comm_model(text, root).allreduce_ms(gradient_mb, world_size)


def read_comm_file(path: Path) -> Measured:
    """A file `{"schema_version": 1, "world_size": G, "allreduce": [{"megabytes": x, "ms": y}, …]}`.

    Raises:
        UsageError: it cannot be read, or is of another schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["schema_version"]
        points = sorted((float(point["megabytes"]), float(point["ms"])) for point in content["allreduce"])
        world_size = int(content["world_size"])
    except OSError as error:
        raise UsageError(f"launch.comm_model: {path}: {error.strerror}", "Name a file, a probe run, or none.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"launch.comm_model: {path} is not a communication file ({error})", _FILE_HINT) from None
    if version != FILE_SCHEMA_VERSION:
        raise UsageError(
            f"launch.comm_model: {path} has schema version {version}, this version reads {FILE_SCHEMA_VERSION}",
            _FILE_HINT,
        )
    return _measured(str(path), points, world_size)


_FILE_HINT = (
    'It holds {"schema_version": 1, "world_size": G, "allreduce": [{"megabytes": x, "ms": y}]} with at least one point.'
)


def _from_probe(reference: str, root: Path) -> Measured:
    probe = load_probe(reference, "launch.comm_model", root).allreduce
    if probe is None:
        raise UsageError(
            f"launch.comm_model: probe {reference!r} measured no all-reduce", "Probe with two or more ranks."
        )
    source = Phrase.of("comm_model.probe", probe=reference)
    return _measured(source, [(probe.megabytes, probe.ms)], probe.world_size)


def _measured(source: str, points: Sequence[tuple[float, float]], world_size: int) -> Measured:
    numbers = [number for point in points for number in point]
    if not points or not all(0 < number < math.inf for number in numbers) or world_size < 2:
        raise UsageError(
            f"launch.comm_model: {source}: sizes and times must be numbers above 0, from at least two ranks", _FILE_HINT
        )
    if len(points) == 1:
        points = [(0.0, 0.0), *points]
    sizes, times = zip(*points, strict=True)
    return Measured(source, sizes, times, world_size)


def _number_pair(text: str) -> tuple[float, float] | None:
    parts = text.split(",")
    if len(parts) != 2:
        return None
    try:
        alpha, beta = float(parts[0]), float(parts[1])
    except ValueError:
        return None
    if not (0 <= alpha < math.inf and 0 <= beta < math.inf):
        raise UsageError(
            f"launch.comm_model: {text!r} is negative or not finite",
            "Give ALPHA_MS,BETA_MS_PER_MB, both at least 0.",
        )
    return alpha, beta


def _ring_share(world_size: int) -> float:
    return 2 * (world_size - 1) / world_size
