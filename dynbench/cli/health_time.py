"""How long a recipe will take on this machine."""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dynbench.cli.diagnosis import WITHOUT_TORCH, Diagnosis
from dynbench.cli.options import Settings
from dynbench.errors import DynbenchError
from dynbench.runs import provenance
from dynbench.units import format_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynbench.config.recipes import Recipe

QUICKSTART = "quickstart"
START_S, COMPUTE_S, REFERENCE_GFLOPS = 40.0, 88.0, 350.0
"""Of the quickstart on 2 idle cores: until its launches have started, what they compute, and those cores' speed."""
MOST_CORES = 8
"""More do not make so small a model faster."""
_SIDE, _MEASURED_S = 512, 0.4
_TIME = re.compile(r"(?m)^# Time: (.*(?:\n#  *\S.*)*?)(?=\n# \w+:|\n(?!#))")


def quickstart(settings: Settings) -> Diagnosis:
    """How long `dynbench compare` takes without arguments: by earlier runs, else by how fast matrices multiply."""
    if find_spec("torch") is None:
        return WITHOUT_TORCH
    import torch

    from dynbench.config.recipes import find_recipe, load_recipe

    try:
        known = known_time([load_recipe(find_recipe(QUICKSTART))], settings)
    except DynbenchError as error:
        return Diagnosis(False, f"cannot start: {error.message}", error.hint or "dynbench doctor quickstart says more.")
    if known is not None:
        return Diagnosis(True, f"dynbench compare takes {known}")
    if torch.cuda.is_available():
        return Diagnosis(True, "not known on GPUs before it ran once; about 2 minutes on 2 cores")
    speed = matrix_gflops()
    took_ms = 1000 * (START_S + COMPUTE_S * REFERENCE_GFLOPS / speed)
    seen = f"dynbench compare takes about {format_ms(took_ms)}, as matrices multiply at {speed:.0f} GFLOP/s here"
    return Diagnosis(True, seen)


def known_time(recipes: Sequence[Recipe], settings: Settings) -> str | None:
    """The time of a comparison by earlier runs of the same settings; None where any of it is not known.

    Raises:
        DynbenchError: an arm whose settings cannot work on this machine.
    """
    from dynbench.experiment.estimate import estimate

    found = estimate(recipes, settings.store())
    return str(found) if found.known == found.launches else None


def told_time(file: Path) -> str | None:
    """What a recipe's file says of its time; None where it says nothing."""
    match = _TIME.search(file.read_text(encoding="utf-8"))
    return None if match is None else " ".join(match[1].replace("\n#", " ").split())


def matrix_gflops() -> float:
    """The best product of matrices in fp32 on one core, times the cores, 10**9 operations a second.

    The best, because others may compute beside it.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix, taken, end = torch.ones(_SIDE, _SIDE), list[float](), time.perf_counter() + _MEASURED_S
        while (begin := time.perf_counter()) < end or not taken:
            matrix @ matrix
            taken.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return 2 * _SIDE**3 / min(taken) / 1e9 * min(MOST_CORES, provenance.usable_cores())
