"""The checks of `dynbench doctor`: what would go wrong on this machine or with a recipe, and what to do about it.

Adding one: a function that returns what it saw, and one line in `CHECKS` or, for recipes, in `recipe.CHECKS`. Where
something would go wrong or be misleading the function raises what it saw as a `Trouble`, by `expect`.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from dynbench.cli.common import Settings
from dynbench.errors import DynbenchError
from dynbench.runs import provenance
from dynbench.units import format_bytes

T = TypeVar("T")
Checks = Mapping[str, tuple[Callable[[T], str], str]]
"""Name to check, and the next step where a `Trouble` or an error that ends it names none."""
DRIVER_FOR_CUDA = {"12": 525, "13": 580}
"""First NVIDIA driver for Linux that programs of a CUDA run on, by its major version (CUDA's release notes)."""
LEAST_DISK_BYTES = 2_000_000_000
LEAST_MEMORY_MB = 2_000
LEAST_RANKS = 2
LEAST_FILES = 1024
LEAST_PROCESSES = 512
BUSY_SHARE = 0.5
"""Load per usable core above which others disturb the timing."""
PATIENCE_S = 10.0
HUB_PATIENCE_S = 3.0


class Trouble(DynbenchError):
    """What a check saw of what would go wrong or be misleading."""


@dataclass(frozen=True)
class Diagnosis:
    """What came of a check.

    Args:
        ok: False when something would go wrong or be misleading.
        seen: the observation, with the limit where there is one.
        hint: the next step; empty when all is well.
    """

    ok: bool
    seen: str
    hint: str = ""


def expect(ok: bool, seen: str, hint: str = "") -> str:
    """What was seen.

    Raises:
        Trouble: it is not as it should be.
    """
    if ok:
        return seen
    raise Trouble(seen, hint)


def run_checks(checks: Checks[T], target: T) -> dict[str, Diagnosis]:
    """What came of every check of a target; what ends one is seen too, and ends no other."""
    return {name: _diagnosed(check, target, hint) for name, (check, hint) in checks.items()}


def _diagnosed(check: Callable[[T], str], target: T, hint: str) -> Diagnosis:
    try:
        return Diagnosis(True, check(target))
    except DynbenchError as error:
        return Diagnosis(False, "; ".join(error.message.splitlines()), error.hint or hint)
    except ImportError as error:
        needed = error.name or "torch"
        return Diagnosis(False, f"unknown without {needed}", f"Install it: pip install {needed}.")
    except OSError as error:
        seen = f"{error.filename or 'the system'}: {error.strerror or error}"
        return Diagnosis(False, seen, "Give this user the right to read it, or name another place.")


def packages(settings: Settings) -> str:
    """Everything that dynbench needs is installed."""
    versions = provenance.package_versions()
    missing = [name for name, found in versions.items() if found is None and name != "triton"]
    expect(not missing, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return f"{sum(map(bool, versions.values()))} installed, none missing"


def torch_works(settings: Settings) -> str:
    """Torch can be imported, and its kind of build."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise Trouble(f"torch cannot be imported: {error}") from error
    return f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"


def devices(settings: Settings) -> str:
    """GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return without_gpus(torch.__version__, torch.version.cuda, torch.cuda.device_count())
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    alone = "; one GPU: ranks are virtual unless --launcher torchrun is given" if len(found) == 1 else ""
    return ", ".join(f"{item.name} {format_bytes(item.total_memory)}" for item in found) + alone


def without_gpus(build: str, cuda: str | None, listed: int) -> str:
    """Why torch uses no GPU: there is none, or driver and build do not fit together.

    Args:
        build: torch's version.
        cuda: that it was built for; None for none.
        listed: GPUs that the driver lists.
    """
    try:
        driver = provenance.nvidia_driver()
    except provenance.UnknownFactError:
        driver = ""
    if not driver and not listed:
        return "no GPU: ranks run on the CPU with gloo"
    kind = f"for CUDA {cuda}" if cuda else "without CUDA"
    seen = f"NVIDIA driver {driver or 'of unknown version'}, torch {build} built {kind}"
    least = DRIVER_FOR_CUDA.get((cuda or "").partition(".")[0])
    if least is not None and driver and int(driver.partition(".")[0]) < least:
        seen += f", which needs driver {least} or newer"
    raise Trouble(
        f"no GPU can be used: {seen}",
        "make clean, then make install TORCH_INDEX=URL with an index of https://download.pytorch.org/whl whose CUDA "
        f"this driver has ({', '.join(f'{cuda}.x from driver {first}' for cuda, first in DRIVER_FOR_CUDA.items())}); "
        "or update the driver, or train with --device cpu.",
    )


def communication(settings: Settings) -> str:
    """Two ranks can communicate over gloo and add up a tensor; with several GPUs there is NCCL."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise Trouble("torch has no gloo", "Install a torch build with it; without, only virtual ranks run.")
    begin = time.monotonic()
    reason = _all_reduce_fault()
    expect(not reason, f"two ranks cannot connect over gloo: {reason}")
    seen = f"two ranks added up a tensor over gloo in {1000 * (time.monotonic() - begin):.0f} ms"
    if dist.is_nccl_available():
        return f"{seen}; NCCL is there"
    if torch.cuda.device_count() > 1:
        raise Trouble(f"{seen}; torch has no NCCL", "Install a torch build with it, or train on the CPU.")
    return f"{seen}; no NCCL"


def _all_reduce_fault() -> str:
    """Why two ranks of threads of this process cannot all-reduce; empty where they do."""
    import torch
    import torch.distributed

    dist: Any = torch.distributed  # whose stubs lack HashStore and ProcessGroupGloo
    store, problems = dist.HashStore(), list[str]()

    def rank(number: int) -> None:
        try:
            group = dist.ProcessGroupGloo(store, number, 2, timedelta(seconds=PATIENCE_S))
            total = torch.ones(1)
            group.allreduce([total]).wait()
            if total.item() != 2:
                problems.append(f"1 + 1 gives {total.item():g}")
        except RuntimeError as error:
            problems.append(str(error).splitlines()[0])

    ranks = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(2 * PATIENCE_S)
    return problems[0] if problems else "no answer" if any(each.is_alive() for each in ranks) else ""


def threads(settings: Settings) -> str:
    """Threads per rank, and room for the processes, threads and files of a launch."""
    cores = provenance.usable_cores()
    files, processes = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    limits = {"open files (ulimit -n)": (files, LEAST_FILES), "processes (ulimit -u)": (processes, LEAST_PROCESSES)}
    if (tasks := provenance.tasks_limit()) is not None:
        limits["processes of the container (pids.max)"] = (tasks, LEAST_PROCESSES)
    short = [
        f"{count} {what}, {least} wanted"
        for what, (count, least) in limits.items()
        if count != resource.RLIM_INFINITY and count < least
    ]
    given = os.environ.get("OMP_NUM_THREADS")
    seen = f"launch.threads is cores over ranks: {max(1, cores // 2)} for each of 2 ranks on {cores} cores"
    seen += f", whatever OMP_NUM_THREADS={given} says" if given else ""
    return expect(not short, "; ".join([seen, *short]))


def cores(settings: Settings) -> str:
    """Enough cores for the ranks that `train` starts on a CPU."""
    usable = provenance.usable_cores()
    ranks = max(LEAST_RANKS, min(4, usable))
    return expect(usable >= ranks, f"{usable} usable, {ranks} ranks by default on a CPU")


def load(settings: Settings) -> str:
    """Nothing else computes."""
    usable, average = provenance.usable_cores(), os.getloadavg()[0]
    limit = BUSY_SHARE * usable
    return expect(average <= limit, f"load average {average:.2f} on {usable} cores, limit {limit:.1f}")


def governor(settings: Settings) -> str:
    """The clock does not follow the load."""
    try:
        name = provenance.cpu_governor()
    except OSError:
        return "the system does not say"
    return name if name == "performance" else expect(False, f"{name}, best is performance")


def memory(settings: Settings) -> str:
    """Enough memory for two ranks of the default model."""
    try:
        facts = provenance.memory_mb()
    except (OSError, provenance.UnknownFactError) as reason:
        return f"the system does not say: {reason}"
    available, limit = facts["available"] or 0.0, facts["limit"]
    within = "" if limit is None else f" within the container's {format_bytes(limit * 1e6)}"
    seen = f"{format_bytes(available * 1e6)} available{within}, {format_bytes(LEAST_MEMORY_MB * 1e6)} needed"
    return expect(available >= LEAST_MEMORY_MB, seen)


def results_folder(settings: Settings) -> str:
    """The results folder can be written; nothing is left behind."""
    store = settings.store()
    if store.root.exists():
        store.check_place()
    else:
        try:
            with tempfile.TemporaryFile(dir=_nearest_folder(store.root)):
                pass
        except OSError as error:
            raise Trouble(f"{store.root}: cannot be made: {error.strerror}") from error
    return f"{store.root} can be written"


def disk(settings: Settings) -> str:
    """Room for results."""
    free = shutil.disk_usage(_nearest_folder(settings.store().root)).free
    return expect(free >= LEAST_DISK_BYTES, f"{format_bytes(free)} free, {format_bytes(LEAST_DISK_BYTES)} wanted")


def hub(settings: Settings) -> str:
    """The model hub answers."""
    from huggingface_hub import constants

    from dynbench.workloads.hub import why_unreachable

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids the network"
    reason = why_unreachable(constants.ENDPOINT, HUB_PATIENCE_S)
    return expect(not reason, f"{constants.ENDPOINT} {f'does not answer: {reason}' if reason else 'answers'}")


def _nearest_folder(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


CHECKS: Checks[Settings] = {
    "packages": (packages, ""),
    "torch": (torch_works, "Install it: pip install torch."),
    "devices": (devices, ""),
    "communication": (
        communication,
        "Let /etc/hosts name this host, or set GLOO_SOCKET_IFNAME to an interface that is up, as lo is.",
    ),
    "threads": (threads, "Raise the limit: ulimit -n 4096, or that of the container."),
    "cores": (cores, "Ranks will take turns and their times mean little; use more cores."),
    "load": (load, "Something else is running and will disturb timings; wait, or stop it."),
    "governor": (governor, "cpupower frequency-set -g performance steadies timings."),
    "memory": (memory, "Free some, or use fewer ranks (--nproc 2)."),
    "results": (results_folder, "Name another with --results or DYNBENCH_RESULTS."),
    "disk": (disk, "Remove runs (dynbench runs rm --failed), or name another --results folder."),
    "hub": (
        hub,
        "The defaults need nothing of it; for pretrained weights mend the network or proxy, or give --model FOLDER.",
    ),
}
"""In the order in which they are shown."""
