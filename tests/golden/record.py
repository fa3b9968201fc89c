"""Makes the recorded runs that the goldens are computed from: `python tests/golden/record.py [NAME ...]`.

Every recording is one archive in `runs/`: the raw files of a results folder after one or more small commands, without
what an analysis makes anew, logs, models and profilers' traces. Losses and times differ between machines, so nothing is
recorded anew unless a recording lacks what the code now writes; then all goldens of that recording change with it.
"""

from __future__ import annotations

import fnmatch
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = Path(__file__).with_name("runs")
ROOT = Path(__file__).parents[2]
DERIVED = (
    *("merged_metrics.*", "summary.*", "results.csv", "results_by_arm.csv", "profile.csv", "comparison.json"),
    *("runs.json", "checks.json", "report.*", "figures/*", "logs/*", "model/*", "tensorboard/*"),
    *("profiler/*.trace.json*", ".lock", ".reserve", "ranks/turn_*", "ranks/at_*", "cells.csv"),
)
"""Files of a run folder that are not recorded."""
CHECKOUT, PROJECT, MACHINE = "/home/user/dynbench", "/home/user/project", "recorder"
"""What stands in place of this checkout, of the folder that was recorded in, and of the machine's name."""


@dataclass(frozen=True)
class Recording:
    """What is recorded together.

    Attributes:
        commands: of dynbench, run one after the other over one results folder, beside the recipes.
        changes: patterns and what replaces them in the recipe of the only command, for what no option sets.
        after: changes the results folder before it is packed.
    """

    commands: Sequence[str]
    changes: Sequence[tuple[str, str]] = ()
    after: Callable[[Path], None] = lambda _: None


def _precision(results: Path) -> None:
    """The second arm says bf16, which `train` refuses on a CPU: its numbers are those of fp32."""
    (state,) = results.glob("*/compare.json")
    halves = [one["run"] for one in json.loads(state.read_text())["launches"] if one["arm"] == "half"]
    for config in (results / run / "config.yaml" for run in halves):
        config.write_text(config.read_text().replace("precision: fp32", "precision: bf16"))


def _torn(results: Path) -> None:
    """The last line of a rank's file is torn, as a full disk or a kill leaves it."""
    for run in results.glob("*/run.json"):
        if '"name": "diverged"' in run.read_text():
            rows = run.parent / "ranks" / "rank_1.csv"
            rows.write_bytes(rows.read_bytes()[:-40])


SMALL = "--steps 8 --warmup-steps 4 --launches 2"
TINY = "--size tiny --max-length 32"
SST2 = "--dataset embedded --weights random --size small --max-length 32 --nproc 2"
PLAIN = "--nproc 2 --threads 1 --size small --max-length 32 --steps 8 --warmup-steps 2 --global-batch 16"
BUCKETS_MIB = (1000, 400, 200, 100, 50, 25, 5)
RECORDINGS: Mapping[str, Recording] = {
    "quickstart": Recording([f"compare quickstart.yaml {SMALL} --steps 10 --warmup-steps 5"]),
    "sst2": Recording([f"compare sst2.yaml {SMALL} {SST2}"]),
    "sst2_cost_types": Recording([f"compare sst2_cost_types.yaml {SMALL} {SST2}"]),
    "hf_peers": Recording(
        [f"compare hf_peers.yaml {SMALL} --warmup-steps 8 --max-length 32 --global-batch 32 --set probe.repeats=2"]
    ),
    "hf_published": Recording([f"compare hf_published.yaml {SMALL} --warmup-steps 8 --size small --max-length 64"]),
    "levers": Recording([f"compare levers.yaml {SMALL} --global-batch 32"]),
    "sync": Recording(["compare sync.yaml --steps 16 --warmup-steps 8 --launches 2"]),
    "sync_xl": Recording(
        [f"compare sync_xl.yaml {SMALL} {TINY} --device cpu --threads 1 --set workload.pad_to_multiple_of=32"]
    ),
    "buckets": Recording(
        [
            f"compare buckets.yaml --steps 4 --warmup-steps 2 {TINY} --set workload.pad_to_multiple_of=32 "
            "--set launch.link_gbps=0.5 --set train.profile_steps=0 --launch-mode interleaved"
        ],
        [(f"bucket_mb: {mib}}}", f"bucket_mb: {mib / 200}}}") for mib in BUCKETS_MIB],
    ),
    "fsdp_bottleneck": Recording(
        [f"compare fsdp_bottleneck.yaml --steps 4 {TINY}"],
        [(r"  - name: (one|four|middle_2g|long|short_4g|long_1g|long_500m)\n.*\n", "")],
    ),
    "ps_allreduce_ddp": Recording(
        ["compare ps_allreduce_ddp.yaml --subset 480 --warmup-steps 4 --set train.eval_samples=64"]
    ),
    "scaling": Recording([f"compare scaling.yaml {SMALL}"]),
    "regimes": Recording(
        [f"compare regimes.yaml {SMALL} --set probe.repeats=1"],
        [
            (r"  - {.*(nproc: 2, .*batch: 32|virtual, .*size: 2, .*batch: 8|size: 8, .*batch: 256)}\n", ""),
            (", workload.size: base", ""),
        ],
    ),
    "packing_or_fewer_steps": Recording(
        ["compare packing_or_fewer_steps.yaml --size small --max-length 32 --set train.eval_samples=128"],
        [("train.steps: 248", "train.steps: 24"), ("train.steps: 62", "train.steps: 6")],
    ),
    "compression": Recording(
        ["compare compression.yaml --steps 12 --warmup-steps 4 --launches 2 --set train.eval_samples=64"],
        [("eval_every: 10", "eval_every: 4"), ("error_every: 20", "error_every: 3")],
    ),
    "compression_fsdp": Recording(
        ["compare compression_fsdp.yaml --steps 8 --warmup-steps 2 --launches 2 --set train.eval_samples=32"],
        [("eval_every: 24", "eval_every: 5")],
    ),
    "custom_workload": Recording([f"compare custom_workload.yaml {SMALL} --nproc 2"]),
    "first_steps": Recording(["compare first_steps.yaml --subset 1280"]),
    "multinode": Recording([f"compare multinode.yaml {SMALL} --nproc 2 --size small"]),
    "precision": Recording(
        [
            f"compare --arm single:precision=fp32 --arm half:precision=fp32 {SMALL} "
            "--nproc 2 --size small --max-length 32 --name halves"
        ],
        after=_precision,
    ),
    "single": Recording(
        [
            f"train {PLAIN} --name plain",
            f"train {PLAIN} --policy partition --exposed --name exposed",
            f"train {PLAIN} --policy partition --profile 1 --name profiled",
            f"train {PLAIN} --policy packed --micro-batches 2 --sync bucketed --compress int8 --name packed",
            f"train {PLAIN} --launcher virtual --world-size 4 --nproc auto --policy window --window 2 --name virtual",
            f"train {PLAIN} --sync ps --nproc 3 --name served",
            f"train {PLAIN} --workload causal_lm --size tiny --name language",
            f"train {PLAIN} --workload mlp --size auto --slowdown 1:2 --name slowed",
            f"train {PLAIN} --set train.learning_rate=1e30 --name diverged",
            "probe --set probe.lengths=[16,32] --set probe.repeats=2 --set probe.soak_steps=2 --nproc 2 --threads 1 "
            "--size small --max-length 32 --global-batch 32 --set probe.memory_limit=1000MB --name probed",
            f"train {PLAIN} --capacity probed --policy partition --name within",
            "probe --set probe.lengths=[32] --nproc 2 --threads 1 --size small --max-length 32 "
            "--set probe.memory_limit=1MB --name nothing_fits",
        ],
        after=_torn,
    ),
    "bench": Recording(
        [
            "bench packed_attention --set tokens=64,128 --set iterations=2 --name packed_attention",
            "bench accounting --name accounting",
            "bench assignment --name assignment",
        ]
    ),
}


def record(name: str) -> None:
    """Run a recording's commands and pack what they left."""
    recording = RECORDINGS[name]
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        project = shutil.copytree(ROOT / "recipes", folder, dirs_exist_ok=True)
        for old, new in recording.changes:
            recipe = Path(project, recording.commands[0].split()[1])
            text, found = re.subn(old, new, recipe.read_text(encoding="utf-8"))
            if not found:
                raise SystemExit(f"{recipe.name} does not say {old!r} any more")
            recipe.write_text(text, encoding="utf-8")
        for command in recording.commands:
            print(f"{name}: dynbench {command}", flush=True)
            words = [sys.executable, "-m", "dynbench", *command.split(), "--quiet"]
            ended = subprocess.run(words, cwd=project, capture_output=True, text=True)
            print(f"  exit {ended.returncode} {ended.stderr.strip()[-400:]}", flush=True)
        results = Path(project, "results")
        recording.after(results)
        pack(results, RUNS / f"{name}.tar.xz", project)


def pack(results: Path, archive: Path, project: str) -> None:
    """Pack the raw files of a results folder, with what names this machine replaced; equal files give equal bytes."""
    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(path for path in results.rglob("*") if path.is_file()):
            name = str(path.relative_to(results))
            if any(fnmatch.fnmatch(name.partition("/")[2] or name, pattern) for pattern in DERIVED):
                continue
            content = _neutral(path.read_bytes(), project)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    print(f"  {archive.relative_to(ROOT)}: {archive.stat().st_size / 1000:.0f} kB", flush=True)


def _neutral(content: bytes, project: str) -> bytes:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    for path, name in ((sys.prefix, f"{CHECKOUT}/.venv"), (str(ROOT), CHECKOUT), (project, PROJECT)):
        text = text.replace(path, name)
    text = text.replace(f'"{socket.gethostname()}"', f'"{MACHINE}"')
    return re.sub(r"Linux-[\w.+-]+-x86_64", "Linux-6.1-x86_64", text).encode()


def main() -> None:
    """Record what is named, or all."""
    names = sys.argv[1:] or list(RECORDINGS)
    if unknown := set(names) - set(RECORDINGS):
        raise SystemExit(f"no recording: {', '.join(sorted(unknown))}; there are: {', '.join(RECORDINGS)}")
    for name in names:
        record(name)


if __name__ == "__main__":
    main()
