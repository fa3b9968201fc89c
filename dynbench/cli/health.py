"""The checks of `dynbench doctor`: what would go wrong on this machine, and what to do about it.

Adding one: a function from a `Settings` to a `Diagnosis`, and one line in `CHECKS`.
"""

from __future__ import annotations

import locale
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from dynbench.cli.diagnosis import WITHOUT_TORCH, Diagnosis, judged
from dynbench.cli.health_ranks import communication, ports, python, threads, triton
from dynbench.cli.options import Settings
from dynbench.errors import UsageError
from dynbench.runs import provenance
from dynbench.units import format_bytes

LEAST_DISK_BYTES = 2_000_000_000
LEAST_MEMORY_MB = 2_000
LEAST_RANKS = 2
DRIVER_FOR_CUDA = {"12": 525, "13": 580}
"""First NVIDIA driver for Linux that programs of a CUDA run on, by its major version (CUDA's release notes)."""
HUB_PATIENCE_S = 3.0
BUSY_SHARE = 0.5
"""Load per usable core above which others disturb the timing."""


def torch_works(settings: Settings) -> Diagnosis:
    """Torch can be imported, and its kind of build."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Diagnosis(False, f"torch cannot be imported: {error}", "Install it: pip install torch.")
    return Diagnosis(True, f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")


def devices(settings: Settings) -> Diagnosis:
    """GPUs that torch sees."""
    if find_spec("torch") is None:
        return WITHOUT_TORCH
    import torch

    if not torch.cuda.is_available():
        return _without_gpus(torch.__version__, torch.version.cuda, torch.cuda.device_count())
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    seen = ", ".join(f"{item.name} {format_bytes(item.total_memory)}" for item in found)
    if len(found) == 1:
        return Diagnosis(True, f"{seen}; one GPU: ranks are virtual unless --launcher torchrun is given")
    return Diagnosis(True, seen)


def _without_gpus(build: str, cuda: str | None, listed: int) -> Diagnosis:
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
        return Diagnosis(True, "no GPU: ranks run on the CPU with gloo")
    kind = f"for CUDA {cuda}" if cuda else "without CUDA"
    seen = f"NVIDIA driver {driver or 'of unknown version'}, torch {build} built {kind}"
    least = DRIVER_FOR_CUDA.get((cuda or "").partition(".")[0])
    if least is not None and driver and int(driver.partition(".")[0]) < least:
        seen += f", which needs driver {least} or newer"
    hint = (
        "make clean, then make install TORCH_INDEX=URL with an index of https://download.pytorch.org/whl whose CUDA "
        f"this driver has ({', '.join(f'{cuda}.x from driver {first}' for cuda, first in DRIVER_FOR_CUDA.items())}); "
        "or update the driver, or train with --device cpu."
    )
    return Diagnosis(False, f"no GPU can be used: {seen}", hint)


def launcher(settings: Settings) -> Diagnosis:
    """Torchrun and the communication backends are there."""
    if find_spec("torch") is None:
        return WITHOUT_TORCH
    import torch.distributed as distributed

    if not distributed.is_available() or find_spec("torch.distributed.run") is None:
        return Diagnosis(
            False, "torch has no torch.distributed", "Install a torch build with it; only virtual ranks run."
        )
    backends = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
    seen = f"torchrun; backends: {', '.join(name for name, present in backends.items() if present) or 'none'}"
    return judged(backends["gloo"], seen, "Ranks on the CPU need gloo; install a torch build with it.")


def cores(settings: Settings) -> Diagnosis:
    """Enough cores for the ranks that `train` starts on a CPU."""
    usable = provenance.usable_cores()
    ranks = max(LEAST_RANKS, min(4, usable))
    seen = f"{usable} usable, {ranks} ranks by default on a CPU"
    return judged(usable >= ranks, seen, "Ranks will take turns and their times mean little; use more cores.")


def load(settings: Settings) -> Diagnosis:
    """Nothing else computes."""
    usable, average = provenance.usable_cores(), os.getloadavg()[0]
    limit = BUSY_SHARE * usable
    seen = f"load average {average:.2f} on {usable} cores, limit {limit:.1f}"
    return judged(average <= limit, seen, "Something else is running and will disturb timings; wait, or stop it.")


def governor(settings: Settings) -> Diagnosis:
    """The clock does not follow the load."""
    try:
        name = provenance.cpu_governor()
    except OSError:
        return Diagnosis(True, "the system does not say")
    if name != "performance":
        hint = "cpupower frequency-set -g performance steadies timings."
        return Diagnosis(False, f"{name}, best is performance", hint)
    return Diagnosis(True, name)


def memory(settings: Settings) -> Diagnosis:
    """Enough memory for two ranks of the default model."""
    try:
        facts = provenance.memory_mb()
    except (OSError, provenance.UnknownFactError) as reason:
        return Diagnosis(True, f"the system does not say: {reason}")
    available, limit = facts["available"] or 0.0, facts["limit"]
    within = "" if limit is None else f" within the container's {format_bytes(limit * 1e6)}"
    seen = f"{format_bytes(available * 1e6)} available{within}, {format_bytes(LEAST_MEMORY_MB * 1e6)} needed"
    return judged(available >= LEAST_MEMORY_MB, seen, "Free some, or use fewer ranks (--nproc 2).")


def results_folder(settings: Settings) -> Diagnosis:
    """The results folder can be written; nothing is left behind."""
    store = settings.store()
    try:
        if store.root.exists():
            store.check_writable()
        else:
            with tempfile.TemporaryFile(dir=_nearest_folder(store.root)):
                pass
    except UsageError as error:
        return Diagnosis(False, error.message, error.hint)
    except OSError as error:
        seen = f"{store.root}: cannot be made: {error.strerror}"
        return Diagnosis(False, seen, "Name another with --results or DYNBENCH_RESULTS.")
    return Diagnosis(True, f"{store.root} can be written")


def disk(settings: Settings) -> Diagnosis:
    """Room for results."""
    root = settings.store().root
    free = shutil.disk_usage(_nearest_folder(root)).free
    seen = f"{format_bytes(free)} free, {format_bytes(LEAST_DISK_BYTES)} wanted"
    hint = "Remove runs (dynbench runs rm --failed), or name another --results folder."
    return judged(free >= LEAST_DISK_BYTES, seen, hint)


def data_cache(settings: Settings) -> Diagnosis:
    """What tokenised data take of the disk."""
    from dynbench.config.schema import Workload
    from dynbench.workloads.cache import cache_folder, kept_data

    folder = cache_folder(Workload())
    size, free = sum(kept.size for kept in kept_data(folder)), shutil.disk_usage(_nearest_folder(folder)).free
    seen = f"{format_bytes(size)} of tokenised data in {folder}, {format_bytes(free)} free"
    return judged(size <= free, seen, "dynbench data cache --older-than 4w --remove makes room.")


def hub_cache(settings: Settings) -> Diagnosis:
    """What of the model hub is on this machine."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    models = sorted(path.name for path in folder.glob("models--*")) if folder.is_dir() else []
    if not models:
        hint = "The embedded default needs none; pretrained weights need the network, or --model FOLDER."
        return Diagnosis(True, f"no model in {folder}", hint)
    names = ", ".join(name.removeprefix("models--").replace("--", "/") for name in models)
    return Diagnosis(True, f"{folder}: {names}")


def hub(settings: Settings) -> Diagnosis:
    """The model hub answers."""
    from huggingface_hub import constants

    from dynbench.workloads.hub import why_unreachable

    if constants.HF_HUB_OFFLINE:
        return Diagnosis(True, "HF_HUB_OFFLINE forbids the network")
    reason = why_unreachable(constants.ENDPOINT, HUB_PATIENCE_S)
    hint = "The defaults need nothing of it; for pretrained weights mend the network or proxy, or give --model FOLDER."
    return judged(not reason, f"{constants.ENDPOINT} {f'does not answer: {reason}' if reason else 'answers'}", hint)


def text_encoding(settings: Settings) -> Diagnosis:
    """Text files and the terminal are UTF-8."""
    encoding = locale.getpreferredencoding(do_setlocale=False)
    if encoding.lower().replace("-", "") != "utf8":
        return Diagnosis(False, f"{encoding}, expected UTF-8", "Set LC_ALL=C.UTF-8, or PYTHONUTF8=1.")
    return Diagnosis(True, encoding)


def packages(settings: Settings) -> Diagnosis:
    """Everything that dynbench needs is installed."""
    optional = {"triton"}
    versions = provenance.package_versions()
    missing = [name for name, found in versions.items() if found is None and name not in optional]
    if missing:
        return Diagnosis(False, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Diagnosis(True, f"{len([found for found in versions.values() if found])} installed, none missing")


CHECKS: dict[str, Callable[[Settings], Diagnosis]] = {
    "python": python,
    "packages": packages,
    "torch": torch_works,
    "devices": devices,
    "launcher": launcher,
    "communication": communication,
    "ports": ports,
    "threads": threads,
    "triton": triton,
    "cores": cores,
    "load": load,
    "governor": governor,
    "memory": memory,
    "results": results_folder,
    "disk": disk,
    "data cache": data_cache,
    "hub cache": hub_cache,
    "hub": hub,
    "encoding": text_encoding,
}


def _nearest_folder(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
