"""Checks of `dynbench doctor` on what ranks need: an interpreter, connections, threads, kernels."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import threading
import time
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynbench.cli.diagnosis import WITHOUT_TORCH, Diagnosis, judged
from dynbench.cli.options import Settings
from dynbench.runs import provenance

TRIED_PYTHONS = ((3, 11), (3, 12), (3, 13))
"""As the classifiers of pyproject.toml say; all tests run with the first."""
MEETING_PORT = 29_500
"""Where ranks of several nodes meet unless another port is named."""
LEAST_FILES = 1024
LEAST_PROCESSES = 512
PATIENCE_S = 10.0


def python(settings: Settings) -> Diagnosis:
    """The interpreter is one that dynbench is tried with."""
    first, *others, last = (".".join(map(str, version)) for version in TRIED_PYTHONS)
    seen = f"{platform.python_version()} ({sys.executable}); tried with {', '.join((first, *others))} and {last}"
    hint = f"Where it fails, make a virtual environment of Python {first}."
    return judged(sys.version_info[:2] in TRIED_PYTHONS, seen, hint)


def communication(settings: Settings) -> Diagnosis:
    """Two ranks can meet over gloo and add up a tensor; with several GPUs there is NCCL."""
    if find_spec("torch") is None:
        return WITHOUT_TORCH
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        return Diagnosis(False, "torch has no gloo", "Install a torch build with it; without, only virtual ranks run.")
    begin = time.monotonic()
    reason = _meet()
    if reason:
        hint = "Let /etc/hosts name this host, or set GLOO_SOCKET_IFNAME to an interface that is up, as lo is."
        return Diagnosis(False, f"two ranks cannot meet over gloo: {reason}", hint)
    seen = f"two ranks added up a tensor over gloo in {1000 * (time.monotonic() - begin):.0f} ms"
    if torch.cuda.device_count() > 1 and not dist.is_nccl_available():
        return Diagnosis(False, f"{seen}; torch has no NCCL", "Install a torch build with it, or train on the CPU.")
    return Diagnosis(True, seen + ("; NCCL is there" if dist.is_nccl_available() else "; no NCCL"))


def _meet() -> str:
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
        with socket.create_server(("", MEETING_PORT)):
            state = "free"
    except OSError:
        state = "in use: name another in --rdzv-endpoint"
    return Diagnosis(True, f"localhost can be reached (port {port}); {MEETING_PORT}, for several nodes, is {state}")


def threads(settings: Settings) -> Diagnosis:
    """Threads per rank, and room for the processes, threads and files of a launch."""
    cores = provenance.usable_cores()
    files, processes = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    limits = {"open files (ulimit -n)": (files, LEAST_FILES), "processes (ulimit -u)": (processes, LEAST_PROCESSES)}
    if (tasks := _most_tasks()) is not None:
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


def _most_tasks() -> int | None:
    """Processes and threads that the container may have; None for no limit."""
    try:
        return int(Path("/sys/fs/cgroup/pids.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def triton(settings: Settings) -> Diagnosis:
    """Triton, for kernels of our own."""
    if find_spec("triton") is None:
        hint = "Only FlashAttention in Triton needs it: pip install dynbench[triton]."
        return Diagnosis(True, "not installed", hint)
    gpu = Path("/dev/nvidiactl").exists()
    how = "compiles for the GPU" if gpu else "interpreted, as there is no GPU: right, and slow"
    return Diagnosis(True, f"triton {provenance.package_versions().get('triton')}, {how}")
