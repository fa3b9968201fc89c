"""The checks of `dynbench doctor`: what would go wrong on this machine, and what to do about it.

Adding one: a function from a `Settings` to a `Diagnosis`, and one line in `CHECKS`.
"""

from __future__ import annotations

import locale
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynbench.cli.options import Settings
from dynbench.errors import DynbenchError
from dynbench.runs import provenance
from dynbench.units import format_bytes

TRIED_PYTHONS = ((3, 11), (3, 12), (3, 13))
"""As the classifiers of pyproject.toml say; all tests run with the first."""
DRIVER_FOR_CUDA = {"12": 525, "13": 580}
"""First NVIDIA driver for Linux that programs of a CUDA run on, by its major version (CUDA's release notes)."""
RENDEZVOUS_PORT = 29_500
"""Where ranks of several nodes meet unless another port is named."""
LEAST_DISK_BYTES = 2_000_000_000
LEAST_MEMORY_MB = 2_000
LEAST_RANKS = 2
LEAST_FILES = 1024
LEAST_PROCESSES = 512
BUSY_SHARE = 0.5
"""Load per usable core above which others disturb the timing."""
PATIENCE_S = 10.0
HUB_PATIENCE_S = 3.0


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


def guarded(check: Callable[[], Diagnosis], hint: str = "") -> Diagnosis:
    """What a check saw; what ends it is seen too, and ends no other check.

    Args:
        check: is called.
        hint: the next step where an error of dynbench's own names none.
    """
    try:
        return check()
    except DynbenchError as error:
        return Diagnosis(False, "; ".join(error.message.splitlines()), error.hint or hint)
    except ImportError as error:
        needed = error.name or "torch"
        return Diagnosis(False, f"unknown without {needed}", f"Install it: pip install {needed}.")
    except OSError as error:
        seen = f"{error.filename or 'the system'}: {error.strerror or error}"
        return Diagnosis(False, seen, "Give this user the right to read it, or name another place.")


def python(settings: Settings) -> Diagnosis:
    """The interpreter is one that dynbench is tried with."""
    first, *others, last = (".".join(map(str, version)) for version in TRIED_PYTHONS)
    seen = f"{platform.python_version()} ({sys.executable}); tried with {', '.join((first, *others))} and {last}"
    hint = f"Where it fails, make a virtual environment of Python {first}."
    return judged(sys.version_info[:2] in TRIED_PYTHONS, seen, hint)


def packages(settings: Settings) -> Diagnosis:
    """Everything that dynbench needs is installed."""
    versions = provenance.package_versions()
    missing = [name for name, found in versions.items() if found is None and name != "triton"]
    seen = (
        f"missing: {', '.join(missing)}" if missing else f"{sum(map(bool, versions.values()))} installed, none missing"
    )
    return judged(not missing, seen, f"pip install {' '.join(missing)}")


def torch_works(settings: Settings) -> Diagnosis:
    """Torch can be imported, and its kind of build."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Diagnosis(False, f"torch cannot be imported: {error}", "Install it: pip install torch.")
    return Diagnosis(True, f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'}")


def devices(settings: Settings) -> Diagnosis:
    """GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return without_gpus(torch.__version__, torch.version.cuda, torch.cuda.device_count())
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    alone = "; one GPU: ranks are virtual unless --launcher torchrun is given" if len(found) == 1 else ""
    return Diagnosis(True, ", ".join(f"{item.name} {format_bytes(item.total_memory)}" for item in found) + alone)


def without_gpus(build: str, cuda: str | None, listed: int) -> Diagnosis:
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
    import torch.distributed as dist

    if not dist.is_available() or find_spec("torch.distributed.run") is None:
        hint = "Install a torch build with it; only virtual ranks run."
        return Diagnosis(False, "torch has no torch.distributed", hint)
    backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    seen = f"torchrun; backends: {', '.join(name for name, present in backends.items() if present) or 'none'}"
    return judged(backends["gloo"], seen, "Ranks on the CPU need gloo; install a torch build with it.")


def communication(settings: Settings) -> Diagnosis:
    """Two ranks can meet over gloo and add up a tensor; with several GPUs there is NCCL."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        return Diagnosis(False, "torch has no gloo", "Install a torch build with it; without, only virtual ranks run.")
    begin = time.monotonic()
    reason = _all_reduce_fault()
    if reason:
        hint = "Let /etc/hosts name this host, or set GLOO_SOCKET_IFNAME to an interface that is up, as lo is."
        return Diagnosis(False, f"two ranks cannot meet over gloo: {reason}", hint)
    seen = f"two ranks added up a tensor over gloo in {1000 * (time.monotonic() - begin):.0f} ms"
    nccl = dist.is_nccl_available()
    if torch.cuda.device_count() > 1 and not nccl:
        return Diagnosis(False, f"{seen}; torch has no NCCL", "Install a torch build with it, or train on the CPU.")
    return Diagnosis(True, seen + ("; NCCL is there" if nccl else "; no NCCL"))


def _all_reduce_fault() -> str:
    """Why two ranks of threads of this process cannot all-reduce; empty where they do."""
    import torch
    import torch.distributed

    dist: Any = torch.distributed  # whose stubs lack what is asked for here
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


def ports(settings: Settings) -> Diagnosis:
    """Processes of this machine can reach each other, as a launch does when its ranks meet."""
    try:
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("localhost", port), PATIENCE_S).close()
    except OSError as error:
        hint = "Let /etc/hosts say `127.0.0.1 localhost`, and no firewall close the loopback."
        return Diagnosis(False, f"no port of localhost can be opened and reached: {error.strerror or error}", hint)
    try:
        with socket.create_server(("", RENDEZVOUS_PORT)):
            state = "free"
    except OSError:
        state = "in use: name another in --rdzv-endpoint"
    return Diagnosis(True, f"localhost can be reached (port {port}); {RENDEZVOUS_PORT}, for several nodes, is {state}")


def threads(settings: Settings) -> Diagnosis:
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
    return judged(not short, "; ".join([seen, *short]), "Raise the limit: ulimit -n 4096, or that of the container.")


def triton(settings: Settings) -> Diagnosis:
    """Triton, for kernels of our own."""
    if find_spec("triton") is None:
        return Diagnosis(True, "not installed", "Only FlashAttention in Triton needs it: pip install dynbench[triton].")
    gpu = Path("/dev/nvidiactl").exists()
    how = "compiles for the GPU" if gpu else "interpreted, as there is no GPU: right, and slow"
    return Diagnosis(True, f"triton {provenance.package_versions().get('triton')}, {how}")


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
    fixed = name == "performance"
    seen = name if fixed else f"{name}, best is performance"
    return judged(fixed, seen, "cpupower frequency-set -g performance steadies timings.")


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
    if store.root.exists():
        store.check_writable()
        return Diagnosis(True, f"{store.root} can be written")
    try:
        with tempfile.TemporaryFile(dir=_nearest_folder(store.root)):
            return Diagnosis(True, f"{store.root} can be written")
    except OSError as error:
        seen = f"{store.root}: cannot be made: {error.strerror}"
        return Diagnosis(False, seen, "Name another with --results or DYNBENCH_RESULTS.")


def disk(settings: Settings) -> Diagnosis:
    """Room for results."""
    free = shutil.disk_usage(_nearest_folder(settings.store().root)).free
    seen = f"{format_bytes(free)} free, {format_bytes(LEAST_DISK_BYTES)} wanted"
    hint = "Remove runs (dynbench runs rm --failed), or name another --results folder."
    return judged(free >= LEAST_DISK_BYTES, seen, hint)


def data_cache(settings: Settings) -> Diagnosis:
    """What tokenised data take of the disk."""
    from dynbench.config.schema import Workload
    from dynbench.workloads.cache import cache_entries, cache_folder

    folder = cache_folder(Workload())
    size, free = sum(kept.size for kept in cache_entries(folder)), shutil.disk_usage(_nearest_folder(folder)).free
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
    utf8 = encoding.lower().replace("-", "") == "utf8"
    return judged(utf8, encoding if utf8 else f"{encoding}, expected UTF-8", "Set LC_ALL=C.UTF-8, or PYTHONUTF8=1.")


def _nearest_folder(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


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
"""By name, in the order in which they are shown."""
