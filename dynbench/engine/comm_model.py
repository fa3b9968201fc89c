"""What the all-reduce of a step costs where virtual ranks send nothing: a stated model, never a guess."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dynbench.engine.planning import find_run, load_probe
from dynbench.errors import UsageError
from dynbench.runs.atomic import load_json
from dynbench.runs.phrase import Phrase
from dynbench.runs.store import RunStore

FILE_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommModel:
    """Predicted time of one all-reduce."""

    description: Phrase
    """Shown wherever the virtual step time is."""
    allreduce_ms: Callable[[float, int], float]
    """Milliseconds for a buffer of so many megabytes (1e6 bytes) over so many ranks."""


def measured(source: str, points: Sequence[tuple[float, float]], world_size: int) -> CommModel:
    """Measured all-reduces: interpolated over size, proportional to size beyond the largest, scaled over ranks.

    A ring all-reduce moves 2(G-1)/G of the buffer per rank (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
    2009), so a measurement with another number of ranks is scaled by that factor.

    Args:
        source: where the points are from.
        points: size in MB and time in ms of each all-reduce, in ascending order; one alone is a line through zero.
        world_size: ranks that they were measured with.

    Raises:
        UsageError: no points, numbers that are no size or time, or fewer than two ranks.
    """
    numbers = [number for point in points for number in point]
    if not points or not all(0 < number < math.inf for number in numbers) or world_size < 2:
        raise UsageError(
            f"launch.comm_model: {source}: sizes and times must be numbers above 0, from at least two ranks", _FILE_HINT
        )
    sizes, times = zip(*([(0.0, 0.0), *points] if len(points) == 1 else points), strict=True)

    def allreduce_ms(megabytes: float, ranks: int) -> float:
        beyond = megabytes > sizes[-1]
        at_size = times[-1] * megabytes / sizes[-1] if beyond else float(np.interp(megabytes, sizes, times))
        return at_size * _ring_share(ranks) / _ring_share(world_size)

    return CommModel(Phrase.of("comm_model.measured", world_size=world_size, source=source), allreduce_ms)


def build_comm_model(text: str | None, root: Path) -> CommModel:
    """The model of `launch.comm_model`.

    Args:
        text: null or `none`, where communication takes no time; `ALPHA_MS,BETA_MS_PER_MB`, latency and inverse
            bandwidth of a whole all-reduce, whatever the number of ranks; a JSON file; or a probe run.
        root: results folder in which a probe run is looked up.

    Raises:
        UsageError: none of these, or a file of another schema.
    """
    if text is None or text == "none":
        return CommModel(Phrase.of("comm_model.none"), lambda megabytes, world_size: 0.0)
    if (pair := _number_pair(text)) is not None:
        alpha_ms, beta_ms_per_mb = pair
        given = Phrase.of("comm_model.given", alpha_ms=alpha_ms, beta_ms_per_mb=beta_ms_per_mb)
        return CommModel(given, lambda megabytes, world_size: alpha_ms + beta_ms_per_mb * megabytes)
    if _is_file(text):
        return _read_file(Path(text))
    probe = load_probe(text, "launch.comm_model", root).allreduce
    if probe is None:
        raise UsageError(f"launch.comm_model: probe {text!r} measured no all-reduce", "Probe with two or more ranks.")
    source = Phrase.of("comm_model.probe", probe=text)
    return measured(source, [(probe.megabytes, probe.ms)], probe.world_size)


def resolve_comm_model(text: str | None, store: RunStore) -> str | None:
    """`launch.comm_model` with a probe run by its id: `@latest` and names mean another run later.

    Raises:
        UsageError: a negative number.
        RunLookupError: no such run, or more than one; names the setting.
    """
    if text is None or text == "none" or _number_pair(text) is not None or _is_file(text):
        return text
    return find_run(store, "launch.comm_model", text).id


def _is_file(text: str) -> bool:
    return Path(text).suffix == ".json" or Path(text).is_file()


def _read_file(path: Path) -> CommModel:
    """A file as `_FILE_HINT` describes it.

    Raises:
        UsageError: it cannot be read, or is of another schema.
    """
    try:
        content = load_json(path)
        version = content["schema_version"]
        points = sorted((float(point["megabytes"]), float(point["ms"])) for point in content["allreduce"])
        world_size = int(content["world_size"])
        if version != FILE_SCHEMA_VERSION:
            raise ValueError(f"schema version {version}, this version reads {FILE_SCHEMA_VERSION}")
    except OSError as error:
        raise UsageError(f"launch.comm_model: {path}: {error.strerror}", "Name a file, a probe run, or none.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"launch.comm_model: {path} is not a communication file ({error})", _FILE_HINT) from None
    return measured(str(path), points, world_size)


_FILE_HINT = (
    'It holds {"schema_version": 1, "world_size": G, "allreduce": [{"megabytes": x, "ms": y}]} with at least one point.'
)


def _number_pair(text: str) -> tuple[float, float] | None:
    try:
        alpha, beta = map(float, text.split(","))
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
