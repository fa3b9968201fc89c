"""What a run ran on: `env.json`. Facts that cannot be learned are null, with the reason in `unknown`.

Nothing here imports torch: what only torch knows, the ranks add.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from dynbench import __version__
from dynbench.config.schema import Config, config_digest
from dynbench.plugins.outside import digests
from dynbench.runs.records import SCHEMA_VERSION
from dynbench.runs.run import host_name, now
from dynbench.units import mb

PACKAGES = ("torch", "transformers", "datasets", "numpy", "polars", "pydantic", "triton", "click", "rich")
VARIABLES = ("DYNBENCH_CACHE", "DYNBENCH_RESULTS", "HF_HUB_OFFLINE", "LD_PRELOAD", "SLURM_JOB_ID", "SLURM_NNODES")
FAMILIES = (
    *("ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "GLOO_", "GOMP_", "KMP_", "MALLOC_", "MKL_", "NCCL_", "NVIDIA_"),
    *("OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TOKENIZERS_", "TORCH_", "TRITON_", "UCX_"),
)
"""With `VARIABLES`, the only environment variables recorded: those that change speed or results, by name or by how
their names begin, none that hold a secret."""

ROOT = Path("/")
UNLIMITED_BYTES = 2**60
"""v1 says "no limit" by a number near 2**63."""

_SOURCE = Path(__file__).resolve().parent.parent
_GIT_TIMEOUT_S = 5


class UnknownFactError(Exception):
    """A fact that cannot be learned here; the message is the reason."""


def collect(config: Config, decisions: Mapping[str, object], data: Mapping[str, object]) -> dict[str, object]:
    """Provenance of a run, as written to `env.json` when it is made; its ranks add the devices.

    Args:
        config: the resolved configuration.
        decisions: dotted key to the value chosen for `auto` and the reason.
        data: fingerprint, sizes and sources of the data.
    """
    facts, unknown = machine_facts()
    return {
        "schema_version": SCHEMA_VERSION,
        "collected": now(),
        "dynbench": __version__,
        "config_digest": config_digest(config),
        "seed": config.train.seed,
        **facts,
        "plugins": digests(),
        "devices": None,
        "data": dict(data),
        "decisions": dict(decisions),
        "unknown": unknown | {"devices": "the command does not use torch"},
    }


def machine_facts() -> tuple[dict[str, object], dict[str, str]]:
    """Facts about this machine and installation, and the reasons of those that are null."""
    facts: dict[str, object] = dict.fromkeys(FACTS)
    unknown: dict[str, str] = {}
    for key, learn in FACTS.items():
        try:
            facts[key] = learn()
        except UnknownFactError as reason:
            unknown[key] = str(reason)
        except OSError as error:
            unknown[key] = f"{error.filename or key}: {error.strerror}"
    return facts, unknown


def git_state() -> dict[str, object]:
    """Commit of the checkout that dynbench runs from, whether it has changes, and which by their digest.

    Raises:
        UnknownFactError: not a checkout, or no git.
    """
    if not (_SOURCE.parent / ".git").exists():
        raise UnknownFactError("dynbench is installed, not run from a git checkout")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    diff = _git("diff", "--no-ext-diff", "--no-color", "HEAD") if changes else ""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(changes),
        "changed_files": len(changes.splitlines()),
        "changes_digest": hashlib.sha256(diff.encode()).hexdigest()[:16] if changes else None,
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_SOURCE.parent), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_GIT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnknownFactError(f"git took more than {_GIT_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().partition("\n")[0] or f"exit {done.returncode}"
        raise UnknownFactError(f"git {arguments[0]}: {said}")
    return done.stdout.strip()


def package_versions() -> dict[str, str | None]:
    """Version of every package that can change a result; null for those not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def cpu_model() -> str:
    """The processor's name.

    Raises:
        UnknownFactError: the system does not say.
    """
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    raise UnknownFactError("/proc/cpuinfo names no model")


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, and at most its share of the container's CPU time."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_governor() -> str:
    """How the first core's clock is set."""
    return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="ascii").strip()


def memory_mb(root: Path = ROOT) -> dict[str, float | None]:
    """Total memory, what is available within the container's limit, and that limit where it has one, MB.

    Args:
        root: where `/proc` and `/sys` are.

    Raises:
        UnknownFactError: the system does not say.
    """
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    try:
        total, free = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    except KeyError as missing:
        raise UnknownFactError(f"/proc/meminfo has no {missing}") from None
    limit, allowed = memory_limit_bytes(root), memory_available_bytes(root)
    return {
        "total": mb(total),
        "available": mb(free if allowed is None else min(free, allowed)),
        "limit": None if limit is None else mb(limit),
    }


def nvidia_driver() -> str:
    """Version of the NVIDIA driver.

    Raises:
        UnknownFactError: none is loaded, or it does not say.
    """
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise UnknownFactError("no NVIDIA driver is loaded") from None
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    if found is None:
        raise UnknownFactError("/proc/driver/nvidia/version names no version")
    return found[1]


def environment() -> dict[str, str]:
    """The recorded environment variables that are set."""
    return {name: value for name, value in sorted(os.environ.items()) if name in VARIABLES or name.startswith(FAMILIES)}


def container() -> str | None:
    """What hints at a container or a batch system; null when nothing does."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    for variable, kind in (("KUBERNETES_SERVICE_HOST", "kubernetes"), ("SLURM_JOB_ID", "slurm")):
        if variable in os.environ:
            return kind
    return None


# Control groups -------------------------------------------------------------------------------------------------------
#
# What those of this process allow, cgroup v1 and v2: a container has less than its machine. A group's limits hold
# together with those of all groups above it. Paths are those of the kernel's documentation, admin-guide/cgroup-v1 and
# cgroup-v2. Inside a container without a cgroup namespace, a group's path is the host's and does not exist below the
# mount; the mount itself is then the container's group.


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """The least memory limit over this process's groups, bytes; None where there is none.

    Args:
        root: where `/proc` and `/sys` are.
    """
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_available_bytes(root: Path = ROOT) -> int | None:
    """What may still be taken within the limits, bytes; None where there is no limit.

    The page cache that the kernel would give back first (inactive files) counts as free, as it does in `MemAvailable`.
    """
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def memory_kills(root: Path = ROOT) -> int:
    """Processes that the kernel has killed for memory since it began, of any group; 0 where it does not tell."""
    lines = _text(root / "proc/vmstat").splitlines()
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == ["oom_kill"]), 0)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of CPU time that this process's groups allow; None when there is no limit."""
    limits = (
        *(_text(group / "cpu.max").partition(" ")[::2] for group in _groups(root, "")),
        *((_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")) for group in _groups(root, "cpu")),
    )
    numbers = [(_whole(limit), _whole(period)) for limit, period in limits]
    return min((limit / period for limit, period in numbers if limit and period), default=None)


def tasks_limit(root: Path = ROOT) -> int | None:
    """Processes and threads that the container may have; None for no limit."""
    return _number(root / "sys/fs/cgroup/pids.max")


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every group that has a limit."""
    for group in _groups(root, ""):
        limits = [limit for name in ("memory.max", "memory.high") if (limit := _number(group / name)) is not None]
        if limits:
            yield min(limits), _used(group, "memory.current", "inactive_file")
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.limit_in_bytes")
        if limit is not None and limit < UNLIMITED_BYTES:
            yield limit, _used(group, "memory.usage_in_bytes", "total_inactive_file")


def _used(group: Path, name: str, cache: str) -> int:
    lines = _text(group / "memory.stat").splitlines()
    inactive = next((int(line.split()[1]) for line in lines if line.split()[:1] == [cache]), 0)
    return max(0, (_number(group / name) or 0) - inactive)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group under a v1 controller and of all groups above it; v2 for the empty name."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller not in controllers.split(","):
            continue
        mounts = root / "sys/fs/cgroup"
        mount = next((mounts / name for name in _mount_names(controllers) if (mounts / name).is_dir()), mounts)
        inner = PurePosixPath(path.lstrip("/"))
        for part in [PurePosixPath()] if ".." in inner.parts else [inner, *inner.parents]:
            yield mount / part


def _mount_names(controllers: str) -> tuple[str, ...]:
    return (controllers, *controllers.split(",")) if controllers else ("unified",)


def _number(path: Path) -> int | None:
    return _whole(_text(path))


def _whole(text: str) -> int | None:
    """The number from 0 on that a text is; None for any other, as `max` and -1 say that there is no limit."""
    return int(text) if text.strip().isdecimal() else None


def _text(path: Path) -> str:
    """The file's text; empty where there is no such file or it may not be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


FACTS: dict[str, Callable[[], object]] = {
    "host": host_name,
    "platform": platform.platform,
    "python": lambda: f"{platform.python_implementation()} {sys.version.split()[0]}",
    "packages": package_versions,
    "git": git_state,
    "cpu_model": cpu_model,
    "cpu_cores": lambda: {"present": os.cpu_count(), "usable": usable_cores(), "quota": cpu_quota()},
    "cpu_governor": cpu_governor,
    "load_average": lambda: list(os.getloadavg()),
    "memory_mb": memory_mb,
    "nvidia_driver": nvidia_driver,
    "container": container,
    "environment": environment,
}
